// checkpoint_folder.h: the folder of --save. One run at a time writes in it. This program touches
// only its own files there: it follows no link, and removes a folder only if each file in it is a
// checkpoint's.
//
//     DIR/step-000400          a checkpoint, complete
//     DIR/step-000400.part     a checkpoint while it is written; a killed run leaves it
//     DIR/.unsplit-lock        locked (flock) by rank 0 of the saving run, until its process ends
//
// All other names belong to the user. Every function is for one rank alone; none waits for other
// ranks.
#ifndef CHECKPOINT_FOLDER_H
#define CHECKPOINT_FOLDER_H
#include <stdio.h>
#include "08_3d/checkpoint_index.h"

enum { FOLDER_NAME = 32, FOLDER_WHY = 1024 };
char *folder_path(const char *dir, const char *file); // "dir/file": free() it
void folder_name(char name[FOLDER_NAME], size_t step, bool part);
// Reads the step from a folder's name. False: folder_name() gives no such name.
bool folder_step(const char *name, size_t *step, bool *part);
// The steps of the checkpoints in dir, complete by their names, the newest first; n 0: there is
// none. free() it.
size_t *folder_steps(const char *dir, size_t *n);

// Makes dir where it is missing and locks it until this process ends. usage_error() where
// another run has the lock or nothing can be written. False: the file system has no locks.
bool folder_claim(const char *dir);

// May this program remove dir/name? It must be a folder with files of a checkpoint only. False:
// `why` names the other file.
bool folder_is_ours(const char *dir, const char *name, char why[FOLDER_WHY]);
// Removes such a folder. False: the folder is not this program's, or cannot be removed; `why` gives
// the reason.
bool folder_remove(const char *dir, const char *name, char why[FOLDER_WHY]);

// Makes the new folder dir/name. False: it cannot be made, or something has that name; errno
// says why.
bool folder_make(const char *dir, const char *name);
// A new file dir/name/file, written from its beginning. NULL: something has that name, or it
// cannot be made.
FILE *folder_create(const char *dir, const char *name, const char *file);
// Renames dir/from to dir/to, where nothing may have that name yet. The names in both folders
// are on the disk before and after. False: errno says why.
bool folder_publish(const char *dir, const char *from, const char *to);

// The index of the checkpoint in `path`. A folder with the name of another step is not accepted.
// False: `why` says what is wrong. Call checkpoint_index_free() in both cases.
bool folder_index(CheckpointIndex *x, const char *path, char why[FOLDER_WHY]);
#endif
