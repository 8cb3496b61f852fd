/* hyper.h: shared by the files about optimizers. */
#ifndef AX_BIND_HYPER_H
#define AX_BIND_HYPER_H

#include "bind/bind.h"

/* The kind that the string at idx names; raises for others. */
ax_optim_kind ax_lua_check_kind(lua_State *L, int idx, const char *fn);
/* Reads all hyperparameters that `kind` takes from the table at idx. */
void ax_lua_read_hyper(lua_State *L, int idx, const char *fn, ax_optim_kind kind, ax_hyper *h);
/* Pushes a scratch array with the list of tensors at idx. */
ax_tensor **ax_lua_push_params(lua_State *L, int idx, const char *fn, int *n);

#endif
