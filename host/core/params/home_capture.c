/* Captured steps over layouts that are cut (capture.h; home.c has the tour).
 *
 * A whole buffer has memory only while it is used.  So a recording begins without whole buffers,
 * gathers them into memory of its own pool, and gives all of them back before it ends.  Its kernels
 * know addresses in the pool and in the parts.  A replay needs the parts at the same addresses, and
 * nothing else. */
#include "core/params/home.h"
#include "capture.h"
#include "core/core.h"
#include "slot.h"

const ax_tensor *ax_home_resting(const ax_tensor *leaf)
{
  const ax_flat *f = leaf->flat;
  return f && f->home.values && !f->home.shared ? f->home.values : leaf;
}

const ax_tensor *ax_home_resting_grad(const ax_tensor *leaf)
{
  const ax_flat *f = leaf->flat;
  return f && f->home.grads && leaf->grad && leaf->grad == ax_slot_grad(leaf) ? f->home.grads : leaf->grad;
}

static const char *name_of(const ax_flat *f) { return f->name ? f->name : "the model"; }

static bool on_device(const ax_flat *f) { return f->device.kind != AX_CPU; }

/* Has a backward pass written gradients that nobody has reduced? */
static bool has_whole_grads(const ax_flat *f) { return f->home.grads && f->grads && !f->home.no_grads.at; }

ax_status ax_home_rest_all(void)
{
  for (ax_flat *f = ax_home_first(); f; f = f->home.listed) {
    if (!on_device(f)) continue;
    if (f->home.users && !f->home.computes)
      return ax_fail(
          AX_EINVAL,
          "a captured step cannot run while summon_full_params holds the values of %s; call it outside",
          name_of(f));
    if (has_whole_grads(f))
      return ax_fail(AX_EINVAL,
                     "gradients of %s are whole on each rank before or after a captured step, which can work "
                     "with reduced ones alone: call Accelerator:backward in the step, and leave out "
                     "whole_in_no_sync where it accumulates",
                     name_of(f));
    ax_flat_drop_values(f);
  }
  return AX_OK;
}

void ax_home_abandon_all(void)
{
  for (ax_flat *f = ax_home_first(); f; f = f->home.listed) {
    if (!on_device(f)) continue;
    ax_flat_drop_values(f);
    if (has_whole_grads(f)) ax_home_take_memory(f->grads, &f->home.no_grads);
  }
}

ax_status ax_home_record(const ax_flat *f, uint8_t kind, const ax_tensor *part)
{
  if (!ax_recording) return AX_OK;
  if (f->home.away & kind)
    return ax_fail(AX_ENOIMPL,
                   "%s of %s rest in host memory (offload), and the device cannot fetch them in a captured "
                   "step: call the step without capture",
                   kind == AX_CUT_VALUES ? "the values" : "the gradients", name_of(f));
  ax_capture_hold(part->storage);
  return AX_OK;
}
