--- Writing at the places of a key, as x[key] = value does.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local options = require "accelerate.utils.options"

local OPTIONS = { accumulate = { "boolean", default = false } }
local function put(name, x, key, value, opts)
  local o = options.check(name, opts, OPTIONS)
  return core._index_put(x, key, value, o.accumulate)
end

define.plain("index_put_", "x:index_put_(key, values, { accumulate = false })",
  "x[key] = values; accumulate: adds them, a place that is named twice gets both", "method",
  function(x, key, values, opts) return put("index_put_", x, key, values, opts) end)
define.plain("index_put", "x:index_put(key, values, { accumulate = false })",
  "a copy of x with values written (or added) at the places of the key", "both",
  function(x, key, values, opts)
    if not core.is_tensor(x) then
      options.fail("index_put: argument 1 (x): expected a tensor, got %s", options.show(x))
    end
    return put("index_put", x:clone(), key, values, opts)
  end)
