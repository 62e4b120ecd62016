// checkpoint_folder.h declares functions for the folder of --save. One run at a time writes in this
// folder. The program writes and removes only its own files there, and nothing through a link. The
// program removes a folder only if each file in the folder belongs to a checkpoint.
//
//     DIR/step-000400          a checkpoint, complete
//     DIR/step-000400.part     an unfinished checkpoint, which a killed run leaves
//     DIR/.unsplit-lock        locked (flock) by rank 0 of the saving run, until its process ends
//
// All other names belong to the user. Any rank may call these functions alone, because no function
// waits for other ranks.
#ifndef CHECKPOINT_FOLDER_H
#define CHECKPOINT_FOLDER_H
#include <stdio.h>
#include "08_3d/checkpoint_index.h"

enum { FOLDER_NAME = 32, FOLDER_WHY = 1024 };
// Returns the path "dir/file". The caller frees the path.
char *folder_path(const char *dir, const char *file);
void folder_name(char name[FOLDER_NAME], size_t step, bool part);
// Reads the step from a folder's name. Returns false if folder_name() gives no such name.
bool folder_step(const char *name, size_t *step, bool *part);
// Returns the n steps of the checkpoints in dir whose names do not end with ".part", the newest
// first. The caller frees the list.
size_t *folder_steps(const char *dir, size_t *n);

// Makes dir if it is missing, and locks dir until this process ends. Calls usage_error() if another
// run has the lock, or if nothing can be written. Returns false if the file system has no locks.
bool folder_claim(const char *dir);

// Returns whether this program may remove dir/name. `name` must be a name of folder_name(). The
// folder must contain only files of a checkpoint, and an index unless `name` ends with ".part". If
// the result is false, `why` gives the reason.
bool folder_is_ours(const char *dir, const char *name, char why[FOLDER_WHY]);
// Removes dir/name. Returns false if folder_is_ours() is false, or if the folder cannot be removed;
// `why` gives the reason.
bool folder_remove(const char *dir, const char *name, char why[FOLDER_WHY]);

// Makes the new folder dir/name. Returns false if the folder cannot be made, or if something has
// that name; errno gives the reason.
bool folder_make(const char *dir, const char *name);
// Opens the new file dir/name/file for writing. Returns NULL if something has that name, or if the
// file cannot be made.
FILE *folder_create(const char *dir, const char *name, const char *file);
// Renames dir/from to dir/to. Nothing may have the name dir/to yet. The names in dir/from are on
// the disk before the rename, and the name dir/to is on the disk when the function returns true. If
// the function returns false, errno gives the reason.
bool folder_publish(const char *dir, const char *from, const char *to);

// Reads the index of the checkpoint in `path`. A folder with the name of another step is not
// accepted. If the function returns false, `why` gives the reason. Call checkpoint_index_free()
// whatever the function returns.
bool folder_index(CheckpointIndex *x, const char *path, char why[FOLDER_WHY]);
#endif
