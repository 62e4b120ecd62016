// checkpoint_folder.c locks the folder of --save, and names, makes and removes the folders and
// files in this folder, and follows no link in this folder. The file also reads the index of a
// checkpoint in any folder.
#include "08_3d/checkpoint_folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/input.h"
#include "common/base/util.h"

enum { OPEN_FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

// ---------------------------------------------------------------- names

char *folder_path(const char *dir, const char *file) {
    char *path = host_alloc(strlen(dir) + strlen(file) + 2);
    sprintf(path, "%s/%s", dir, file);
    return path;
}

void folder_name(char name[FOLDER_NAME], size_t step, bool part) {
    snprintf(name, FOLDER_NAME, "step-%06zu%s", step, part ? ".part" : "");
}

bool folder_step(const char *name, size_t *step, bool *part) {
    static const char end[] = ".part";
    char expected[FOLDER_NAME];
    if (sscanf(name, "step-%10zu", step) != 1) return false;
    size_t length = strlen(name), tail = sizeof end - 1;
    *part = length > tail && strcmp(name + length - tail, end) == 0;
    folder_name(expected, *step, *part);
    return strcmp(name, expected) == 0;
}

static int newest_first(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x < y) - (x > y);
}

size_t *folder_steps(const char *dir, size_t *n) {
    size_t step, room = 16, *steps = host_alloc(room * sizeof *steps);
    bool part;
    *n = 0;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (!folder_step(e->d_name, &step, &part) || part) continue;
        if (*n == room) {
            size_t *more = host_alloc((room *= 2) * sizeof *more);
            memcpy(more, steps, *n * sizeof *more);
            free(steps);
            steps = more;
        }
        steps[(*n)++] = step;
    }
    if (d) closedir(d);
    qsort(steps, *n, sizeof *steps, newest_first);
    return steps;
}

// ---------------------------------------------------------------- the files of this program

// Returns whether the file has this text at this place. If the file ends earlier, the beginning of
// the text is enough, because a killed run may leave only a part of a file.
static bool begins(int file, off_t place, const char *text) {
    char found[128];
    ssize_t n = pread(file, found, strlen(text), place);
    return n >= 0 && memcmp(found, text, (size_t)n) == 0;
}

static bool is_rank_file(const char *name) {
    size_t rank;
    char expected[CHECKPOINT_FILE_NAME];
    if (sscanf(name, "rank-%10zu", &rank) != 1) return false;
    checkpoint_file_name(expected, rank);
    return strcmp(name, expected) == 0;
}

// Returns whether a file of the folder is a regular file with the name and the first bytes of a
// checkpoint's file.
static bool is_our_file(int folder, const char *name) {
    const bool index = strcmp(name, CHECKPOINT_INDEX_NAME) == 0;
    if (!index && !is_rank_file(name)) return false;
    int file = openat(folder, name,
                      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); // never waits for a pipe
    if (file < 0) return false;
    struct stat is;
    bool ours =
        fstat(file, &is) == 0 && S_ISREG(is.st_mode) &&
        (index ? begins(file, 0, CHECKPOINT_INDEX_BEGIN) : begins(file, 8, CHECKPOINT_FILE_BEGIN));
    close(file);
    return ours;
}

static DIR *open_folder(const char *dir, const char *name) {
    int above = open(dir, OPEN_FOLDER);
    int folder = openat(above, name, OPEN_FOLDER | O_NOFOLLOW);
    if (above >= 0) close(above);
    return folder < 0 ? NULL : fdopendir(folder);
}
static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

bool folder_is_ours(const char *dir, const char *name, char why[FOLDER_WHY]) {
    size_t step;
    bool part, index = false, ours = true;
    DIR *d = folder_step(name, &step, &part) ? open_folder(dir, name) : NULL;
    if (!d) {
        snprintf(why, FOLDER_WHY,
                 "%.400s/%s was not made by this program: it is no folder that can be read", dir,
                 name);
        return false;
    }
    for (const struct dirent *e; ours && (e = readdir(d));) {
        if (is_dots(e->d_name)) continue;
        ours = is_our_file(dirfd(d), e->d_name);
        index = index || strcmp(e->d_name, CHECKPOINT_INDEX_NAME) == 0;
        if (!ours)
            snprintf(why, FOLDER_WHY,
                     "%.400s/%s/%s was not written by this version of this program", dir, name,
                     e->d_name);
    }
    closedir(d);
    if (!ours || part || index) return ours;
    snprintf(why, FOLDER_WHY, "%.400s/%s is no checkpoint: it has no %s", dir, name,
             CHECKPOINT_INDEX_NAME);
    return false;
}

// First renames a complete checkpoint to step-N.part. If the run is killed during the removal, only
// a .part folder remains, which no reader takes for a complete checkpoint.
bool folder_remove(const char *dir, const char *name, char why[FOLDER_WHY]) {
    if (!folder_is_ours(dir, name, why)) return false;
    size_t step;
    bool part;
    char part_name[FOLDER_NAME];
    folder_step(name, &step, &part);
    folder_name(part_name, step, true);
    if (!part && !folder_publish(dir, name, part_name)) {
        snprintf(why, FOLDER_WHY, "cannot rename %.400s/%s: %s", dir, name, strerror(errno));
        return false;
    }
    DIR *d = open_folder(dir, part_name);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (is_our_file(dirfd(d), e->d_name)) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    char *path = folder_path(dir, part_name);
    bool removed = rmdir(path) == 0;
    if (!removed) snprintf(why, FOLDER_WHY, "cannot remove %.900s: %s", path, strerror(errno));
    free(path);
    return removed;
}

// ---------------------------------------------------------------- one run at a time

bool folder_claim(const char *dir) {
    static const char name[] = ".unsplit-lock", mark[] = "unsplit: ";
    REQUIRE(mkdir(dir, 0777) == 0 || errno == EEXIST, "--save %s: cannot make this folder: %s", dir,
            strerror(errno));
    int folder = open(dir, OPEN_FOLDER);
    REQUIRE(folder >= 0 && faccessat(folder, ".", W_OK | X_OK, 0) == 0,
            "--save %s: cannot write in this folder: %s", dir, strerror(errno));
    int lock = openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    int trouble = errno;
    close(folder);
    struct stat is;
    REQUIRE(lock >= 0 || trouble == ELOOP, "--save %s: cannot write %s in it: %s", dir, name,
            strerror(trouble));
    REQUIRE(lock >= 0 && fstat(lock, &is) == 0 && S_ISREG(is.st_mode) && begins(lock, 0, mark),
            "--save %s: %s in it was not written by this program: move it away, or save elsewhere",
            dir, name);
    bool locked = flock(lock, LOCK_EX | LOCK_NB) == 0;
    char holder[256] = "";
    if (!locked && errno == EWOULDBLOCK) {
        ssize_t n = pread(lock, holder, sizeof holder - 1, 0);
        holder[n > 0 ? n : 0] = 0;
        holder[strcspn(holder, "\n")] = 0;
        size_t skip = strlen(holder) < sizeof mark ? strlen(holder) : sizeof mark - 1;
        usage_error("--save %s: another run saves in this folder%s%s: wait until it has ended, or "
                    "save elsewhere",
                    dir, holder[skip] ? ", " : "", holder + skip);
    }
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(holder, sizeof holder, "%sprocess %ld on %s\n", mark, (long)getpid(), host);
    if (ftruncate(lock, 0) != 0 || pwrite(lock, holder, strlen(holder), 0) < 0)
        usage_error("--save %s: cannot write %s in it: %s", dir, name, strerror(errno));
    return locked; // the file stays open, so the process keeps the lock until it ends
}

// ---------------------------------------------------------------- writing

bool folder_make(const char *dir, const char *name) {
    char *path = folder_path(dir, name);
    bool made = mkdir(path, 0777) == 0; // mkdir() fails if a link has this name
    free(path);
    return made;
}

FILE *folder_create(const char *dir, const char *name, const char *file) {
    DIR *d = open_folder(dir, name);
    int new =
        d ? openat(dirfd(d), file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666) : -1;
    int trouble = errno;
    if (d) closedir(d);
    errno = trouble;
    return new < 0 ? NULL : fdopen(new, "w");
}

// Writes the names of the files in a folder to the disk. Some file systems cannot sync a folder
// (EINVAL), and need no sync.
static bool sync_folder(const char *dir, const char *name) {
    DIR *d = open_folder(dir, name);
    bool good = d && (fsync(dirfd(d)) == 0 || errno == EINVAL);
    int trouble = errno;
    if (d) closedir(d);
    errno = trouble;
    return good;
}

bool folder_publish(const char *dir, const char *from, const char *to) {
    struct stat is;
    char *old = folder_path(dir, from), *new = folder_path(dir, to);
    bool taken = lstat(new, &is) == 0; // rename() alone would replace an empty folder
    bool done = !taken && sync_folder(dir, from) && rename(old, new) == 0 && sync_folder(dir, ".");
    free(old);
    free(new);
    if (taken) errno = EEXIST;
    return done;
}

// ---------------------------------------------------------------- reading an index

// Reads the step from the name of the folder to which the path leads. Returns false if the folder
// does not have the name of a complete checkpoint. For example, a user may have renamed the folder.
static bool step_of(const char *path, size_t *step) {
    char *whole = realpath(path, NULL);
    bool part, found = whole && folder_step(strrchr(whole, '/') + 1, step, &part) && !part;
    free(whole);
    return found;
}

bool folder_index(CheckpointIndex *x, const char *path, char why[FOLDER_WHY]) {
    enum { MOST_BYTES = 1 << 28 };
    size_t n, step;
    char reason[INPUT_WHY];
    char *file = folder_path(path, CHECKPOINT_INDEX_NAME);
    char *text = input_text(file, MOST_BYTES, &n, reason);
    *x = (CheckpointIndex){ 0 };
    const char *wrong = text ? checkpoint_index_parse(x, text, n) : "cannot be read: ";
    if (wrong) snprintf(why, FOLDER_WHY, "%.600s %s%s", file, wrong, text ? "" : reason);
    bool agree = wrong || !step_of(path, &step) || step == x->step;
    if (!agree)
        snprintf(why, FOLDER_WHY,
                 "%.600s is of step %zu, and its folder has the name of another step", file,
                 x->step);
    free(file);
    free(text);
    return !wrong && agree;
}
