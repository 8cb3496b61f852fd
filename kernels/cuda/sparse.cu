/* Products with sparse matrices, over the plans of host/core/ops/sparse.def.  A thread has an
 * element of the product and adds the entries of its row in the plan's order, neighbours read
 * neighbouring elements of the dense rows; a warp has the dot products of a row.  No two threads
 * write one place.  A plan that names a position outside the matrix is reported when the host next
 * waits for the device (common.cuh).  Memory bounds both kernels. */
#include "rows.cuh"

struct plan {
  const int64_t *starts, *columns, *order; /* order NULL: the values stand in the plan's order */
  int64_t rows, count, size;               /* size: how many columns there are */
  int op;
  ax_cuda_fault *fault;
};

static ax_status plan_of(const ax_call *call, int64_t rows, int64_t columns, int64_t count, plan *p)
{
  const ax_tensor *t = call->in[2];
  p->starts = ax_cuda_data<int64_t>(t);
  p->columns = p->starts + rows + 1;
  p->order = t->numel - rows - 1 > count ? p->columns + count : NULL;
  p->rows = rows;
  p->count = count;
  p->size = columns;
  p->op = call->op;
  p->fault = ax_cuda_fault_place(t->device);
  return p->fault ? AX_OK : AX_ENOMEM;
}

/* The entries of row r; none where the plan is wrong. */
static __device__ __forceinline__ void entries_of(const plan &p, int64_t r, int64_t *first, int64_t *end)
{
  *first = p.starts[r];
  *end = p.starts[r + 1];
  if (ax_cuda_in_range(p.fault, AX_FAULT_INDEX, p.op, *first, r, p.count + 1) &&
      ax_cuda_in_range(p.fault, AX_FAULT_INDEX, p.op, *end, r + 1, p.count + 1))
    return;
  *first = *end = 0;
}

/* The column and the value's place of entry e; false where the plan is wrong. */
static __device__ __forceinline__ bool entry_at(const plan &p, int64_t e, int64_t *column, int64_t *place)
{
  *column = p.columns[e];
  *place = p.order ? p.order[e] : e;
  return ax_cuda_in_range(p.fault, AX_FAULT_INDEX, p.op, *column, e, p.size) &&
         ax_cuda_in_range(p.fault, AX_FAULT_INDEX, p.op, *place, e, p.count);
}

template <class T>
static __global__ void product(plan p, int64_t width, const T *values, const T *dense, T *y)
{
  const int64_t all = p.rows * width;
  for (int64_t i = AX_FIRST; i < all; i += AX_STEP) {
    const int64_t r = i / width, c = i - r * width;
    int64_t first, end, column, place;
    T sum = 0;
    entries_of(p, r, &first, &end);
    for (int64_t e = first; e < end; e++)
      if (entry_at(p, e, &column, &place)) sum += values[place] * dense[column * width + c];
    y[i] = sum;
  }
}

template <class T> static __global__ void dots(plan p, int64_t width, const T *a, const T *b, T *y)
{
  typedef ax_cuda_team<false> team;
  for (int64_t r = team::first_row(); r < p.rows; r += team::row_step()) {
    int64_t first, end, column, place;
    entries_of(p, r, &first, &end);
    for (int64_t e = first; e < end; e++) {
      const bool good = entry_at(p, e, &column, &place);
      T sum = 0;
      for (int64_t c = team::rank(); good && c < width; c += team::size())
        sum += a[r * width + c] * b[column * width + c];
      sum = team::sum(sum, (T *)NULL);
      if (good && team::rank() == 0) y[place] = sum;
    }
  }
}

AX_CUDA_KERNEL(_sparse_product)
{
  const ax_tensor *values = call->in[0], *dense = call->in[1], *y = call->out[0];
  plan p;
  if (y->numel == 0) return AX_OK;
  const ax_status st = plan_of(call, y->shape[0], dense->shape[0], values->numel, &p);
  if (st != AX_OK) return st;
  return ax_cuda_with_wide(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) T;
    return ax_cuda_launch("sparse_product", y->device, ax_cuda_blocks(y->numel, 256, y->device.index), 256,
                          product<T>, p, dense->shape[1], ax_cuda_data<T>(values), ax_cuda_data<T>(dense),
                          ax_cuda_data<T>(y));
  });
}

AX_CUDA_KERNEL(_sparse_dots)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
  plan p;
  if (y->numel == 0) return AX_OK;
  const ax_status st = plan_of(call, a->shape[0], b->shape[0], y->numel, &p);
  if (st != AX_OK) return st;
  return ax_cuda_with_wide(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) T;
    return ax_cuda_launch("sparse_dots", y->device, ax_cuda_blocks(p.rows * 32, 256, y->device.index), 256,
                          dots<T>, p, a->shape[1], ax_cuda_data<T>(a), ax_cuda_data<T>(b),
                          ax_cuda_data<T>(y));
  });
}
