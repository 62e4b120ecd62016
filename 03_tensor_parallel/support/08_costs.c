// 08_costs.c: see 08_costs.h.
#include "03_tensor_parallel/support/08_costs.h"
#include <stdio.h>
#include "common/model/costs.h"
enum { RING, ZIGZAG, RSA, ULYSSES };
static const char *const kind_name[CONTEXT_KINDS] = { "ring", "zigzag", "RSA", "Ulysses" };
void context_trained_costs(Run *run, const Training *t, int kind, const ContextTrained *r) { (void)run; (void)t; (void)kind; (void)r; (void)kind_name;}
void context_attention_costs(Run *run, const ContextSizes *z, int kind, const ContextMeasured *r) { (void)run; (void)z; (void)kind; 
 if (run->is_root) printf("%d sent %zu kept %zu buffers %zu fwd %g bwd %g idle %g %g\n", kind, r->sent, r->kept, r->buffers, r->forward.step/1e9, r->backward.step/1e9, r->forward.idle_of_total, r->backward.idle_of_total);
}
void context_results(Run *run, const ContextSizes *z) { (void)run; (void)z; }
