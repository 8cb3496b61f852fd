/* slot.h: a parameter's slot in its layout: the places of its gradient and of its working copy. */
#ifndef AX_SLOT_H
#define AX_SLOT_H

#include "flat.h"

/* NULL: the tensor is in no layout (any more). */
static inline ax_flat_slot *ax_slot_of(const ax_tensor *t)
{
  return t->flat ? &t->flat->slots[t->slot] : NULL;
}
/* Borrowed; NULL: none. */
static inline ax_tensor *ax_slot_grad(const ax_tensor *t) { return t->flat ? ax_slot_of(t)->grad : NULL; }
static inline ax_tensor *ax_slot_work(const ax_tensor *t) { return t->flat ? ax_slot_of(t)->work : NULL; }
/* A working copy has the parameter's values while nobody has edited the parameter since. */
static inline bool ax_slot_work_is_current(const ax_tensor *t)
{
  const ax_flat_slot *s = ax_slot_of(t);
  return s && s->work && s->work_edits == t->version->edits;
}
static inline void ax_slot_set_work_current(const ax_tensor *t, bool current)
{
  ax_flat_slot *s = ax_slot_of(t);
  if (s) s->work_edits = t->version->edits - (current ? 0 : 1);
}

#endif
