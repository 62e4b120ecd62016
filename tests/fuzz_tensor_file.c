// fuzz_tensor_file.c: reads random bytes as a safetensors file. Every tensor that the reader finds
// must lie inside these bytes.
// with: 08_3d/tensor_file.c common/base/input.c
#include "08_3d/tensor_file.h"
#include "tests/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *file = fuzz_copy(data, size);
    char why[TENSOR_FILE_WHY] = "";
    TensorFile f;
    if (tensor_file_parse(&f, file, size, "a file", why)) {
        volatile double sum = 0;
        for (size_t i = 0; i < f.n; i++) {
            for (size_t k = 0; k < f.tensor[i].count; k++)
                sum += tensor_file_value(&f.tensor[i], k);
            if (!tensor_file_find(&f, f.tensor[i].name)) abort();
            const char *note = tensor_file_note(&f, f.tensor[i].name);
            if (note && strlen(note) > size) abort();
        }
        tensor_file_close(&f);
    } else if (!why[0]) abort();
    free(file);
    return 0;
}
