-- Which rooms of lua/accelerate may require which, at load and later; and no circle of requires
-- between files of two rooms.
--
-- A room is a file or folder right below lua/accelerate; `helpers` are those files of utils that
-- stand on the rooms above it.  The rest of utils and messages are the ground floor: two rooms by
-- subject, one layer (a class says what it lacks, and a message asks what a class is).
-- `accelerate` (init.lua) and utils/init.lua name their members and load each at its first use, so
-- they stand on everything.

local HELPERS = {
  ["accelerate.utils"] = true, ["accelerate.utils.available"] = true, ["accelerate.utils.random"] = true,
  ["accelerate.utils.tqdm"] = true, ["accelerate.utils.memory"] = true, ["accelerate.utils.offload"] = true,
  ["accelerate.utils.models"] = true,
}

-- From the bottom up: a room and what it may require, besides utils, messages, core, bit, ffi and
-- itself.
local MAY = {
  utils = "",
  messages = "",
  deferred = "",
  plot = "",
  machine = "helpers",
  cuda = "machine",
  func = "",
  autograd = "func",
  metrics = "",
  prompt = "helpers profiler state tensor",
  jupyter = "prompt",
  -- its scripts stand on everything
  commands = "checkpoint jupyter plot machine helpers weights files accelerate data nn optim tensor parallel",
  config = "parallel distributed",
  state = "machine config collectives helpers",
  collectives = "state data distributed",
  distributed = "",
  data = "state plot helpers",
  parallel = "state collectives distributed nn optim deferred",
  precision = "state collectives capture nn",
  capture = "state precision optim",
  nn = "capture sparse distributed deferred",
  optim = "nn capture state sparse",
  sparse = "",
  tensor = "precision cuda nn autograd sparse deferred",
  files = "nn state",
  weights = "nn files deferred",
  peft = "nn files config state quantisation weights",
  quantisation = "nn weights files config big_modeling messages state",
  models = "quantisation nn state tensor weights big_modeling hooks deferred",
  tokenizers = "models",
  distributions = "tensor",
  logging = "state",
  tracking = "state plot helpers",
  profiler = "nn tracking",
  helpers = "config state cuda files nn precision weights",
  data_loader = "data state collectives config helpers",
  launchers = "state",
  big_modeling = "nn weights files helpers hooks state collectives deferred",
  hooks = "nn helpers state",
  local_sgd = "accelerator parallel",
  checkpoint = "collectives distributed files parallel state weights",
  accelerator = "capture checkpoint collectives config data_loader deferred logging nn optim parallel " ..
    "precision " ..
    "profiler state tracking weights machine helpers",
}

local BELOW = { core = true, host = true, utils = true, messages = true, bit = true, ffi = true,
  ["jit.util"] = true,
  ["table.new"] = true, ["string.buffer"] = true }

local M = {}

local GROUND = { utils = true, messages = true }

local function room_of(module)
  if HELPERS[module] then return "helpers" end
  return module:match("^accelerate%.([%w_]+)") or module
end

local function layer_of(module)
  local room = room_of(module)
  return GROUND[room] and "the ground floor" or room
end

-- Modules of the tree, each with its requires: { [module] = { path = , list of { line, module } }
-- }.
local function graph(tree)
  local all = {}
  for path in tree:each({ lua = true }, { "lua/accelerate/" }) do
    local module = path:sub(5, -5):gsub("/init$", ""):gsub("/", ".")
    local node = { path = path }
    local text, at, line, seen = tree:apart(path).code, 1, 1, 1
    while true do
      local from, to, name = text:find("%f[%w_]require%s*%(?%s*[\"']([%w_.]+)[\"']", at)
      if not from then break end
      line = line + select(2, text:sub(seen, from):gsub("\n", ""))
      seen, at = from + 1, to + 1
      node[#node + 1] = { line = line, module = name }
    end
    all[module] = node
  end
  return all
end

local function sorted(map)
  local list = {}
  for key in pairs(map) do list[#list + 1] = key end
  table.sort(list)
  return list
end

--- Rooms require what the table allows them.
function M.requires(tree, report)
  local all = graph(tree)
  for _, module in ipairs(sorted(all)) do
    local node, room = all[module], room_of(module)
    local may = {}
    for name in (MAY[room] or ""):gmatch("%S+") do may[name] = true end
    for _, edge in ipairs(node) do
      local target = room_of(edge.module)
      if MAY[room] and target ~= room and not BELOW[target] and not may[target] then
        report(node.path, edge.line, ("%s requires %s; it may require %s"):format(room, edge.module,
          MAY[room] == "" and "utils, messages and core only" or MAY[room]:gsub("%s+", ", ") ..
          ", utils, messages and core"))
      elseif not MAY[room] and room ~= "accelerate" then
        report(node.path, edge.line,
          ("the room %s is new: write down in host/tools/lint/requires.lua what it may require"):format(room))
      end
    end
  end
end

--- No module requires, by way of others, itself, unless all of them are of one layer.
function M.circles(tree, report)
  local all = graph(tree)
  for _, from in ipairs(sorted(all)) do
    for _, edge in ipairs(all[from]) do
      if all[edge.module] and layer_of(edge.module) ~= layer_of(from) then
        -- the shortest way back
        local before, queue, at = { [edge.module] = from }, { edge.module }, 1
        while queue[at] and not before[from] do
          for _, next_edge in ipairs(all[queue[at]]) do
            local name = next_edge.module
            if all[name] and not before[name] then
              before[name] = queue[at]
              queue[#queue + 1] = name
            end
          end
          at = at + 1
        end
        if before[from] then
          local way, name = { from }, before[from]
          while name ~= from do
            table.insert(way, 1, name)
            name = before[name]
          end
          report(all[from].path, edge.line,
            ("a circle of requires: %s -> %s"):format(from, table.concat(way, " -> ")))
        end
      end
    end
  end
end

return M
