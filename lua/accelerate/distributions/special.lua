--- Special functions as functions: those of tensors.
local M = {}

for _, name in ipairs { "lgamma", "digamma", "erfinv" } do
  M[name] = function(x) return x[name](x) end
end

return M
