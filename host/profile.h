/* The profiler's record: one event for each op, gradient rule, optimizer pass and named range, in
 * the order in which they begin.  When off it costs the dispatcher one branch that is never
 * taken. */
#ifndef AX_PROFILE_H
#define AX_PROFILE_H

#include "ax.h"

typedef enum {
  AX_PROFILE_OP,
  AX_PROFILE_BACKWARD,
  AX_PROFILE_OPTIM,
  AX_PROFILE_RANGE,
  AX_PROFILE_COLLECTIVE
} ax_profile_kind;

typedef struct ax_profile_event {
  int64_t start, end; /* nanoseconds of a clock that only moves forward; end 0: still under way */
  int64_t flops;      /* by the formulas of products and convolutions; of this event alone */
  int64_t bytes;      /* in tensors at the end, minus at the beginning */
  int32_t parent;     /* the event that contains it, -1: none */
  int32_t name, place, stack, shapes, modules; /* numbers of texts; 0: none */
  int32_t kind;
  int32_t depth;
} ax_profile_event;

typedef struct ax_profile_options {
  bool shapes, memory, stack, flops, modules, wait;
} ax_profile_options;

extern _Thread_local bool ax_profiling; /* this thread records events */
/* the place in the script of the current event; 0 when nothing records */
extern _Thread_local int32_t ax_profile_place;

/* Fills in the place in the script; ax_profile_text turns texts into numbers.  Called when an
 * outermost event begins. */
typedef void (*ax_profile_where)(const ax_profile_options *wanted, ax_profile_event *e);

/* wait: each op waits for its device, so that its time is the time of the work and not of the
 * launch. */
AX_API void ax_profile_start(ax_profile_options o, ax_profile_where where);
AX_API void ax_profile_stop(void);
AX_API void ax_profile_clear(void); /* forgets the events; texts keep their numbers */
/* Borrowed until the next event begins; *dropped: how many events were lost for lack of memory. */
AX_API const ax_profile_event *ax_profile_events(int32_t *n, int64_t *dropped);
/* The number of a text, from 1 on: equal texts have equal numbers.  0: no memory. */
AX_API int32_t ax_profile_text(const char *text);
AX_API const char *ax_profile_text_of(int32_t number);

typedef struct ax_profile_mark {
  int32_t at;
  uint32_t run;
} ax_profile_mark;
AX_API ax_profile_mark ax_profile_begin(const char *name, ax_profile_kind kind, int32_t place);
AX_API void ax_profile_end(ax_profile_mark m);

/* Waits until the device has finished its work, where the options have `wait`. */
void ax_profile_wait(ax_device device);
/* Called by the dispatcher while ax_profiling: runs run(op, args, result) between the beginning and
 * the end of an event.  result: `out` of ax_run, or the address of the destination. */
ax_status ax_profile_run(ax_op op, const ax_args *args, ax_tensor **result, bool inplace,
                         ax_status (*run)(ax_op, const ax_args *, ax_tensor **));

#endif
