--- One entry for every row of the op table: how to call it, and a plain Lua reference.  The suite
--- fails for a row without one.
---
---   inputs     shapes and value ranges of the tensor inputs
---   broadcast  shapes for the broadcast layout instead
---   call       calls the op on them
---   ref        POINTWISE: scalars in, scalar out; others: nested tables in, nested tables out
---   through    for rows with a leading underscore, which have no Lua function: the named row's
---              second derivative (or forward pass) runs them
---   once       the fused backward row whose gradient raises: no second derivative
---   spec       the spec that runs it, where nothing here can
---   exact      no finite differences (results are not floating, or random)
---
--- A file for each family of rows, as in host/core/ops.
for _, family in ipairs { "pointwise", "copy", "reduce", "linalg", "loss", "norm", "shape", "index", "random",
  "rnn", "attention", "conv", "pool", "windows", "norm_batch", "factor",
  "interpolate", "complex", "grid_sample", "distance", "ctc", "sparse", "encoded", "float8" } do
  require("spec.support.op_cases." .. family)
end

return require("spec.support.op_cases.helpers").C
