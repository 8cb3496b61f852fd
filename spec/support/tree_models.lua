--- Models that Python scripts have drawn (generators/gen_device_maps_reference.py says how they are
--- written), for specs.
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"

local M = {}

--- Reads a file of references.
function M.read(path)
  local file = assert(io.open(path))
  local entries = json.decode(file:read "*a")
  file:close()
  return entries
end

--- Returns a model. class_of(name): default nn.class.
function M.build(tree, class_of)
  local module = (class_of or nn.class)(tree[1])()
  for _, of in ipairs(tree[2]) do
    module[of[1]] = nn.Parameter(tensor.zeros(of[2], { dtype = of[3] }), { requires_grad = false })
  end
  for _, of in ipairs(tree[3]) do
    module:register_buffer(of[1], tensor.zeros(of[2], { dtype = of[3] }), { persistent = of[4] })
  end
  for _, child in ipairs(tree[4]) do module:add_module(child[1], M.build(child[2], class_of)) end
  return module
end

local function at(model, name)
  local path, last = name:match "^(.*)%.([^.]*)$"
  if not path then return model, name end
  return model:get_submodule(path), last
end

--- Makes the second parameter of each pair of names the first one. Returns the model.
function M.tie(model, pairs_of_names)
  for _, pair in ipairs(pairs_of_names) do
    local from, a = at(model, pair[1])
    local to, b = at(model, pair[2])
    to[b] = from[a]
  end
  return model
end

return M
