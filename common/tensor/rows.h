// rows.h: declares Row and ConstRow, through which the loops of an op read and write the rows of a
// tensor, in C and in CUDA C++.
//
// In C a row is a pointer to reals, so loops vectorise. An op with 16-bit operands widens them
// first (ops.c). In CUDA C++ a row knows its element type. x[c] loads an element as a real, and
// y[c] = v rounds v and stores it. So a kernel reads and writes 16 bits itself, and computes in
// real. Each store rounds the element, so such a kernel must store an element only once, and must
// not read an element that it has stored.
#ifndef ROWS_H
#define ROWS_H
#include "common/tensor/storage.h"
#include "common/tensor/tensor.h"

#ifdef __cplusplus
enum { KERNELS_TAKE_HALVES = 1 };

// A Cell is an element that is about to be read or written.
struct Cell {
    void *at;
    Element element;
    Cell(const Cell &) = default;
    MEMBER operator real() const {
        return element == REALS ? *(const real *)at : stored_value(element, *(const uint16_t *)at);
    }
    MEMBER Cell &operator=(real x) {
        if (element == REALS) *(real *)at = x;
        else *(uint16_t *)at = stored_round(element, x);
        return *this;
    }
    MEMBER Cell &operator=(const Cell &x) { return *this = (real)x; }
    MEMBER Cell &operator-=(real x) { return *this = (real) * this - x; }
};
struct ConstRow {
    void *first;
    Element element;
    MEMBER void *place(size_t c) const {
        return (char *)first + c * (element == REALS ? sizeof(real) : sizeof(uint16_t));
    }
    MEMBER real operator[](size_t c) const {
        const Cell cell = { place(c), element };
        return cell;
    }
    MEMBER ConstRow operator+(size_t n) const {
        const ConstRow row = { place(n), element };
        return row;
    }
};
struct Row : ConstRow {
    MEMBER Cell operator[](size_t c) const {
        const Cell cell = { place(c), element };
        return cell;
    }
    MEMBER Row operator+(size_t n) const {
        Row row = *this;
        row.first = place(n);
        return row;
    }
};
ITEM Row row_of(Tensor t, size_t r) {
    Row row;
    row.first = t.data;
    row.element = t.element;
    return row + r * t.ld;
}
#else
enum { KERNELS_TAKE_HALVES = 0 };
typedef real *Row;
typedef const real *ConstRow;
ITEM Row row_of(Tensor t, size_t r) { return t.data + r * t.ld; }
#endif

// Returns row r of a tensor that is always stored in reals, such as statistics.
ITEM real *row_of_reals(Tensor t, size_t r) { return t.data + r * t.ld; }
#endif
