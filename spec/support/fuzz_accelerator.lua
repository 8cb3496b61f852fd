--- Calls every public method and constructor of the Accelerator, the states and the configuration
--- classes with values of each wrong type and with arguments missing.  Each call works, or raises
--- an error that names the argument; it prints those that do neither.  As a script, because what it
--- looks for may crash:  accel-run [--num_processes N] spec/support/fuzz_accelerator.lua
local accelerate = require "accelerate"
require "accelerate.accelerator"
local core = require "accelerate.core"
local data, nn, optim = require "accelerate.data", require "accelerate.nn", require "accelerate.optim"
local dataclasses = require "accelerate.config.dataclasses"
local environment = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"
local state = require "accelerate.state"

local SOURCE = debug.getinfo(1, "S").short_src
local rank = core.dist.rank()
local say = print
rawset(_G, "print", function() end)  -- methods that print are called too

-- ---- values

--- One of each type, and odd ones of a type; made anew for each call.
local VALUES = {
  { "nil", function() return nil end }, { "number", function() return 3 end },
  { "fraction", function() return -1.5 end },
  { "NaN", function() return 0 / 0 end }, { "string", function() return "text" end },
  { "boolean", function() return true end },
  { "empty table", function() return {} end }, { "list", function() return { 1, "two" } end },
  { "map", function() return { nonsense = 1 } end },
  { "function", function() return function() end end }, { "tensor", function() return core.ones(2, 2) end },
  { "0-d tensor", function() return core.tensor(1) end }, { "userdata", function() return io.stdout end },
  { "thread", function() return coroutine.create(function() end) end },
  { "cdata", function() return require("ffi").new("int64_t", 5) end },
  { "object", function() return setmetatable({}, { __index = function() error "no such field" end }) end },
}

-- Engines leave a wish in the environment, which later Accelerators would follow.
local WISHES = { "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_PARALLELISM_CONFIG",
  "FSDP_CPU_RAM_EFFICIENT_LOADING" }

local function reset()
  state.reset()
  for _, name in ipairs(WISHES) do environment.set(name, nil) end
end

--- What a fresh Accelerator has at hand.
local function make_world()
  reset()
  local w = { accelerator = accelerate.Accelerator() }
  w.model = nn.Linear(2, 1)
  w.optimizer = optim.SGD(w.model:parameters(), { lr = 0.1 })
  w.loader = data.DataLoader(data.TensorDataset(core.ones(4, 2)), { batch_size = 2 })
  w.scheduler = optim.lr_scheduler.StepLR(w.optimizer, { step_size = 1 })
  return w
end

local function model(w) return w.accelerator:prepare(w.model) end
local function fn() return function() return 7 end end
local function tensor() return core.ones(2, 2) end
local function loss(w) return w.accelerator:prepare(w.model)(core.ones(1, 2)):sum() end
local function parameters(w) return w.accelerator:prepare(w.model):parameters() end
local function own(name) return function(w) return w[name] end end
local function always(value) return function() return value end end
local function opts(...) return { "opt", always(nil), names = { ... } } end

-- ---- what methods take

-- Arguments in order: what a message calls it (or "this|that"), and what makes a good one; `opts`:
-- a table with these names. "": any value will do.
local ANY = { "", always(5) }
local FUNCTION = { "function", fn }
local ACCELERATOR = {
  prepare = { ANY, ANY }, free_memory = { ANY }, clear = { ANY },
  prepare_model = { { "module", own "model" }, opts("device_placement", "evaluation_mode") },
  prepare_optimizer = { { "optimizer", own "optimizer" }, opts("device_placement") },
  prepare_data_loader = { { "loader", own "loader" }, opts("device_placement", "slice_fn_for_dispatch") },
  prepare_scheduler = { { "scheduler", own "scheduler" } },
  unwrap_model = { { "module", model }, opts("keep_fp32_wrapper", "keep_torch_compile") },
  backward = { { "loss|the tensor", loss }, opts("weight", "retain_graph", "create_graph", "learning_rate") },
  accumulate = { { "argument 1", model }, FUNCTION }, no_sync = { { "argument 1", model }, FUNCTION },
  trigger_sync_in_backward = { { "argument 1", model }, FUNCTION },
  join_uneven_inputs = { { "prepared models|joinables", function(w) return { model(w) } end },
    opts("even_batches"), FUNCTION },
  autocast = { { "handler|AutocastKwargs", function() return accelerate.AutocastKwargs {} end }, FUNCTION },
  clip_grad_norm_ = { { "parameters|entry", parameters }, { "max_norm", always(1) }, opts("norm_type") },
  clip_grad_value_ = { { "parameters|entry", parameters }, { "clip_value", always(1) } },
  unscale_gradients = { { "optimizer", always(nil) } },
  gather = { { "tensor|a list", tensor } },
  gather_for_metrics = { { "tensor|a list", tensor }, opts("use_gather_object") },
  reduce = { { "tensor|a list", tensor }, { "reduction|options", always("sum") },
    { "scale|options", always(nil) } },
  pad_across_processes = { { "tensor|a list", tensor }, opts("dim", "pad_index", "pad_first") },
  set_trigger = {}, check_trigger = {}, wait_for_everyone = {}, print = { ANY },
  save = { { "the value is", function() return { x = tensor() } end },
    { "path", always("saved") }, opts("safe_serialization") },
  save_model = { { "module", model }, { "directory", always("out") },
    opts("max_shard_size", "safe_serialization") },
  get_state_dict = { { "module", model }, opts("unwrap") },
  skip_first_batches = { { "loader", own "loader" }, { "num_batches", always(1) } },
  register_for_checkpointing = { { "object 1", own "model" } },
  register_save_state_pre_hook = { { "hook", fn } }, register_load_state_pre_hook = { { "hook", fn } },
  split_between_processes = { { "a list, a tensor|a tensor without dims|the map",
    function() return { 1, 2, 3 } end }, opts("apply_padding"), FUNCTION },
  profile = { { "ProfileKwargs|profile_handler", function() return accelerate.ProfileKwargs {} end },
    FUNCTION },
  main_process_first = { FUNCTION }, local_main_process_first = { FUNCTION },
  on_main_process = { FUNCTION }, on_local_main_process = { FUNCTION }, on_last_process = { FUNCTION },
  on_process = { { "options|process_index", always { process_index = 0 } }, { "function", fn } },
  on_local_process = { { "options|process_index", always { local_process_index = 0 } }, { "function", fn } },
}
local STATE = { set_device = {}, destroy_process_group = { { "no argument", always(nil) } },
  get_deepspeed_plugin = { { "name|plugin", always("x") } },
  select_deepspeed_plugin = { { "name|plugin", always("x") } } }

-- Where several ranks run: leaving their group ends the test.
local LAST = { end_training = true, destroy_process_group = true }

-- ---- calls

local calls, problems = 0, 0

local function problem(what, message)
  problems = problems + 1
  say(("rank %d: %s: %s"):format(rank, what, (tostring(message):gsub("\n.*", ""))))
end

--- Calls it; `words`: one of them must be in the error's message.
local function try(what, words, call, ...)
  calls = calls + 1
  local arguments, n = { ... }, select("#", ...)
  local ok, message = pcall(function()
    call(unpack(arguments, 1, n))
    return true
  end)
  if ok then return end
  -- what the world did
  if type(message) == "table" and getmetatable(message) and getmetatable(message).__tostring then return end
  if type(message) ~= "string" then return problem(what, "raises a " .. type(message)) end
  local text = message:gsub("\nstack traceback:.*", "")
  local named = text:find("no such field", 1, true)  -- raised by the odd object itself
  for _, alternatives in ipairs(words) do
    for word in (alternatives .. "|"):gmatch("(.-)|") do
      named = named or text:lower():find(word:lower(), 1, true) ~= nil
    end
  end
  if text:find("attempt to ", 1, true) or text:find("bad argument", 1, true) then problem(what, text)
  elseif not text:find(SOURCE, 1, true) then problem(what, "does not point at the caller: " .. text)
  elseif not named then problem(what, ("does not name %s: %s"):format(table.concat(words, " or "), text)) end
end

--- Every argument of a method with every wrong value, the others good; and with the last ones left
--- out.
local function method(class, name, arguments, object_of)
  local what = ("%s:%s"):format(class, name)
  local function with(at, value, last)
    local w = make_world()
    local object = object_of(w)
    local list = {}
    for i, argument in ipairs(arguments) do
      if i == at then list[i] = value
      elseif i <= last then list[i] = argument[2](w) end
    end
    return object[name], object, unpack(list, 1, last)
  end
  for left = 0, #arguments - 1 do
    local words = { name .. ":|gather_object:" }
    try(("%s with %d arguments"):format(what, left), words, with(0, nil, left))
  end
  for i, argument in ipairs(arguments) do
    for _, value in ipairs(VALUES) do
      local words = { argument[1] }
      if argument.names then words = { name, "gather_object:", unpack(argument.names) } end
      -- taken for options, a function takes the place of the one after it
      for _, other in ipairs(arguments) do
        if argument.names or value[1] == "function" or value[1] == "nil" then
          words[#words + 1] = other[1] ~= "" and other[1] or name
        end
      end
      try(("%s, argument %d (%s) a %s"):format(what, i, argument[1], value[1]), words,
        with(i, value[2](), #arguments))
      for _, option in ipairs(argument.names or {}) do
        try(("%s { %s = %s }"):format(what, option, value[1]), { option .. "|gather_object:" },
          with(i, { [option] = value[2]() }, #arguments))
      end
    end
    if argument.names then
      try(what .. " { nonsense = 1 }", { "'nonsense'" }, with(i, { nonsense = 1 }, #arguments))
    end
  end
  -- One too many is ignored, as Lua has it, or refused; a wrong `self` cannot name an argument, but
  -- must not crash.
  for _, value in ipairs(VALUES) do
    local w = make_world()
    local fn_ = object_of(w)[name]
    calls = calls + 1
    pcall(fn_, value[2]())
  end
end

--- A method that the tables above do not know: three arguments of each type; messages name the
--- method.
local function unknown_method(class, name, object_of)
  local words = { name .. "|closure|parameter group" }
  for count = 0, 3 do
    for _, value in ipairs(count == 0 and { VALUES[1] } or VALUES) do
      local w = make_world()
      local list = {}
      for i = 1, count do list[i] = value[2]() end
      try(("%s:%s(%d times a %s)"):format(class, name, count, value[1]), words, object_of(w)[name],
        object_of(w), unpack(list, 1, count))
    end
  end
end

--- What prepare returns wraps the script's objects: these are its own methods.
local function wrapper_methods(class, names, object_of)
  for name in names:gmatch("%S+") do unknown_method(class, name, object_of) end
end

local function class_methods(class, known, object_of)
  for _, name in ipairs(ordered.sorted_keys(properties.defined[class].methods)) do
    if name:sub(1, 1) ~= "_" and not (LAST[name] and core.dist.world_size() > 1) then
      if known[name] then method(class, name, known[name], object_of)
      else unknown_method(class, name, object_of) end
    end
  end
  -- Fields: reading works or says why; assigning a value of each type works or names the field.
  for _, name in ipairs(ordered.sorted_keys(properties.defined[class].get)) do
    try(("%s.%s"):format(class, name), { name }, function() return object_of(make_world())[name] end)
    for _, value in ipairs(VALUES) do
      local object = object_of(make_world())
      try(("%s.%s = %s"):format(class, name, value[1]), { name }, function() object[name] = value[2]() end)
    end
  end
end

-- Functions that would change the machine or wait for a terminal.
local UNTOUCHED = { set_memory_limit = true, tqdm = true, breakpoint = true }

-- What messages call some functions' arguments: a size, a kind of generator, a truth word (whose
-- second argument is its name), the file "text", which save has written by then.
local OTHER_NAMES = "|log_with|DataLoader:|max_shard_size|synchronize_rng_state|expected one of y yes" ..
  "|safetensors: 'text'"

--- The functions of a module, as methods without an object.
local function functions(module, name)
  for _, member in ipairs(getmetatable(module) and getmetatable(module).__members
    or ordered.sorted_keys(module)) do
    local found = not UNTOUCHED[member] and module[member]
    local meta = type(found) == "table" and not rawget(found, "_fields") and getmetatable(found)
    if type(found) == "function" or meta and meta.__call and not properties.defined[member] then
      for count = 0, 3 do
        for _, value in ipairs(count == 0 and { VALUES[1] } or VALUES) do
          state.reset()
          local list = {}
          for i = 1, count do list[i] = value[2]() end
          try(("%s.%s(%d times a %s)"):format(name, member, count, value[1]), { member .. OTHER_NAMES },
            found, unpack(list, 1, count))
        end
      end
    end
  end
end

--- A class' options, each with each value; and each value in place of the table.
local function constructor(name, Class, fields)
  for _, value in ipairs(VALUES) do
    reset()
    try(("%s(%s)"):format(name, value[1]), { name, "nonsense" }, Class, value[2]())
    for _, field in ipairs(fields) do
      reset()
      -- a plain table is taken for a configuration's fields
      local words = { field .. "|Configuration:|Config:|Plugin:" }
      try(("%s { %s = %s }"):format(name, field, value[1]), words, Class, { [field] = value[2]() })
      reset()
      try(("%s { %s = { %s } }"):format(name, field, value[1]), words, Class, { [field] = { value[2]() } })
    end
  end
end

class_methods("Accelerator", ACCELERATOR, own "accelerator")
local PROCESS = properties.merge(ACCELERATOR, STATE)
class_methods("PartialState", PROCESS, function() return state.PartialState() end)
class_methods("AcceleratorState", PROCESS, function(w) return w.accelerator.state end)
class_methods("GradientState", {}, function() return state.GradientState() end)

wrapper_methods("AcceleratedOptimizer",
  "step zero_grad add_param_group state_dict load_state_dict train eval",
  function(w) return w.accelerator:prepare(w.optimizer) end)
wrapper_methods("AcceleratedScheduler", "step get_last_lr state_dict load_state_dict",
  function(w) return w.accelerator:prepare(w.scheduler) end)
wrapper_methods("DataLoaderShard", "len iter set_epoch",
  function(w) return w.accelerator:prepare(w.loader) end)
wrapper_methods("stateful DataLoaderShard", "iter state_dict load_state_dict", function(w)
  return accelerate.Accelerator({ dataloader_config = { use_stateful_dataloader = true } }):prepare(w.loader)
end)

functions(accelerate, "accelerate")
for _, name in ipairs { "utils", "logging", "tracking", "data_loader" } do
  functions(accelerate[name], "accelerate." .. name)
end

constructor("Accelerator", accelerate.Accelerator,
  ordered.sorted_keys(require("accelerate.accelerator.arguments").OPTIONS))
constructor("PartialState", state.PartialState, { "cpu", "backend", "init_method", "timeout" })
for _, value in ipairs(VALUES) do
  make_world()
  try(("AcceleratorState(%s)"):format(value[1]), { "AcceleratorState" }, state.AcceleratorState, value[2]())
  try(("AcceleratorState { cpu = %s }"):format(value[1]), { "cpu" }, state.AcceleratorState,
    { cpu = value[2]() })
  try(("GradientState(%s)"):format(value[1]), { "GradientState" }, state.GradientState, value[2]())
end
assert(dataclasses.HANDLERS)  -- loads the handlers
local classes = properties.merge(dataclasses, {
  FullyShardedDataParallelPlugin = accelerate.FullyShardedDataParallelPlugin,
  ParallelismConfig = accelerate.ParallelismConfig,
})
for _, name in ipairs(ordered.sorted_keys(classes)) do
  local Class = classes[name]
  if type(Class) == "table" and rawget(Class, "_fields") then
    constructor(name, Class, Class._fields)
    for _, field in ipairs(Class._fields) do
      for _, value in ipairs(VALUES) do
        local object = Class {}
        try(("%s.%s = %s"):format(name, field, value[1]), { field },
          function() object[field] = value[2]() end)
      end
    end
    for _, member in ipairs(ordered.sorted_keys(properties.defined[name].methods)) do
      for _, value in ipairs(member:sub(1, 1) ~= "_" and VALUES or {}) do
        local object = Class {}
        try(("%s:%s(%s)"):format(name, member, value[1]), { member, "project_dir|state_dict_type" },
          object[member], object, value[2]())
      end
    end
  end
end

if core.dist.world_size() > 1 then core.dist.barrier() end
if rank == 0 then say(("%s calls, %d problems"):format(options.show(calls), problems)) end
if problems > 0 then os.exit(1) end
