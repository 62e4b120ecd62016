// tensor_file.h declares functions that read and write safetensors files
// (github.com/huggingface/safetensors, "Format"). A safetensors file begins with the length of the
// header, 8 bytes, little-endian. The header follows, a JSON object that maps a name to dtype,
// shape and offsets. The tensors come last, row-major. Files are mapped for reading, so only the
// used pages come into memory. The functions ignore causal masks and angles of rotary positions,
// which older files have.
#ifndef TENSOR_FILE_H
#define TENSOR_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include "common/base/real.h"

// --export writes all of these types except F16.
typedef enum { FILE_F64, FILE_F32, FILE_F16, FILE_BF16 } FileType;
const char *file_type_name(FileType type); // "F32"
size_t file_type_bytes(FileType type);
// Writes values [n] as elements of this type into out [n elements]. F16 and BF16 round once.
void file_type_put(FileType type, void *out, const real *values, size_t n);
typedef struct {
    const char *name;
    FileType type;
    size_t dims, shape[4], count; // count: elements
    const void *data;             // in the mapped file, aligned to its elements
} FileTensor;
typedef struct {
    FileTensor *tensor; // [n]
    size_t n, bytes;    // bytes of the file
    const unsigned char *map;
    bool mapped;          // tensor_file_close() unmaps `map`
    struct cJSON *header; // holds the names
} TensorFile;
enum { TENSOR_FILE_WHY = 512 };
// Opens a file. Returns false if the file cannot be read, is torn, or is not a safetensors file of
// these types. `why` names the file and the reason.
bool tensor_file_open(TensorFile *f, const char *path, char why[TENSOR_FILE_WHY]);
// Opens a file whose bytes are in memory. The caller frees the bytes after tensor_file_close().
// name: the file's name in the messages.
bool tensor_file_parse(TensorFile *f, const unsigned char *map, size_t bytes, const char *name,
                       char why[TENSOR_FILE_WHY]);
void tensor_file_close(TensorFile *f);
// Returns the tensor with this name, or NULL.
const FileTensor *tensor_file_find(const TensorFile *f, const char *name);
// Returns whether a tensor with this name is ignored.
bool tensor_file_leaves_out(const char *name);
// Returns the value of "__metadata__" with this key, or NULL.
const char *tensor_file_note(const TensorFile *f, const char *key);
double tensor_file_value(const FileTensor *t, size_t i);
// Returns element i of the tensor, for elements that enter a computation. Calls usage_error() if
// the element is not finite. from: the file's name for the message.
real tensor_file_finite(const FileTensor *t, size_t i, const char *from);
// Returns the beginning of a file: the length of the header, and json [n], padded with spaces so
// that the tensors begin at a multiple of 8. The caller frees this text.
// *bytes: the number of bytes of this beginning.
char *tensor_file_header(const char *json, size_t n, size_t *bytes);
#endif
