/* Generators.  The numbers themselves are made by kernels from (seed, stream, draw, index): see
 * kernels/philox.h. */
#include "capture.h"
#include "core/ops/infer.h"

static ax_generator fallback = { .refs = 1, .per_rank = true };
static ax_generator common = { .refs = 1 };
static uint64_t seedings;
static int rank;

ax_status ax_generator_new(uint64_t seed, ax_generator **out)
{
  ax_generator *g = *out = ax_malloc(sizeof *g);
  if (!g) return AX_ENOMEM;
  *g = (ax_generator){ .refs = 1, .seed = seed };
  return AX_OK;
}

void ax_generator_release(ax_generator *g)
{
  if (g && --g->refs == 0) ax_mfree(g);
}

ax_generator *ax_generator_default(void) { return &fallback; }
ax_generator *ax_generator_common(void) { return &common; }

void ax_manual_seed(uint64_t seed)
{
  fallback.seed = seed;
  fallback.draws = 0;
  fallback.per_rank = false;
  seedings++;
}

uint64_t ax_random_seedings(void) { return seedings; }

void ax_random_set_rank(int r) { rank = r; }

void ax_random_draw(ax_generator *gen, bool per_rank, ax_attrs *a)
{
  if (!gen) gen = &fallback;
  if (gen == &common) gen = &fallback;
  else if (gen->per_rank && rank > 0) per_rank = true;
  a->rng.seed = gen->seed;
  a->rng.stream = per_rank ? 1 + (uint64_t)rank : 0;
  a->rng.draw = gen->draws++;
  a->rng.device_args = NULL;
  if (__builtin_expect(ax_recording != NULL, 0)) ax_capture_draw(gen, a);
}
