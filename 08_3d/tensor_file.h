// tensor_file.h: a safetensors file (github.com/huggingface/safetensors, "Format"): 8 bytes, the
// length of the header, little-endian; the header, JSON: name -> dtype, shape, place; the tensors,
// row-major. A file that is read is mapped: only the pages that somebody looks at come into memory;
// the causal masks of older files of GPT-2 are passed over.
#ifndef TENSOR_FILE_H
#define TENSOR_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include "common/base/real.h"

typedef struct {
    const char *name;
    bool is_double; // F64; else F32
    size_t dims, shape[4], count; // count: elements
    const void *data; // in the mapped file, aligned to its elements
} FileTensor;
typedef struct {
    FileTensor *tensor; // [n]
    size_t n, bytes; // bytes of the file
    const unsigned char *map;
    bool mapped; // map is ours to give back
    struct cJSON *header; // holds the names
} TensorFile;
enum { TENSOR_FILE_WHY = 512 };
// False: this is no safetensors file of F32 or F64 tensors, or it is torn; why says so, and names
// the file.
bool tensor_file_open(TensorFile *f, const char *path, char why[TENSOR_FILE_WHY]);
// The same for bytes in memory, which stay the caller's; name is for the messages.
bool tensor_file_parse(TensorFile *f, const unsigned char *map, size_t bytes, const char *name,
                       char why[TENSOR_FILE_WHY]);
void tensor_file_close(TensorFile *f);
// NULL where there is none
const FileTensor *tensor_file_find(const TensorFile *f, const char *name);
// The value of "__metadata__" with this key; NULL where there is none.
const char *tensor_file_note(const TensorFile *f, const char *key);
double tensor_file_value(const FileTensor *t, size_t i);
// The same for what is computed with: usage_error() where it is not finite. from: whose file this
// is, for the message.
real tensor_file_finite(const FileTensor *t, size_t i, const char *from);
// What a file begins with: the length of the header, and json [n], padded with spaces so that the
// tensors begin at a multiple of 8. *bytes: of both. free() it.
char *tensor_file_header(const char *json, size_t n, size_t *bytes);
#endif
