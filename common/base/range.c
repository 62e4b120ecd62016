// range.c: defines shard_range() in its own file, because the HTML pages of the book (make book)
// use shard_range() without the rest of util.c.
#include "common/base/util.h"

Range shard_range(size_t n, size_t parts, size_t i) {
    if (i >= parts) fault("shard_range: there is no part %zu of %zu", i, parts);
    // The first `larger` parts have base + 1 items, the other parts have base items.
    size_t base = n / parts, larger = n % parts;
    size_t lo = i * base + (i < larger ? i : larger);
    return (Range){ lo, lo + base + (i < larger) };
}
