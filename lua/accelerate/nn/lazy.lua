--- Lazy modules: their parameters get their sizes, and are made, at the first call. Then the module
--- becomes one of the class that it stands for.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"

local M = {}

--- Makes a class that becomes `Base` at its first call.
---@param name string
---@param Base table
---@return table Class
function M.class(name, Base)
  local Class = class(name, Base)
  Class._builtin, Class._lazy, Class._becomes = true, true, Base
  function Class:forward(x, ...)
    if not core.is_tensor(x) then
      options.fail("%s: expected a tensor, got %s", name, options.show(x))
    end
    local made = Base(self._values._arguments(x))
    made._registered.state_hooks = self._registered.state_hooks
    rawset(self, "_values", made._values)
    rawset(self, "_registered", made._registered)
    setmetatable(self, Base)
    return self:forward(x, ...)
  end
  function Class.reset_parameters() end -- there are none yet
  return Class
end

--- Keeps how the constructor of the class that it becomes is called.
---@param arguments fun(x: accelerate.Tensor): ... from the first input
function M.keep(self, arguments) self._arguments = arguments end

return M
