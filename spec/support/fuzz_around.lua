--- Calls the public functions of tracking, logging and the profiler with values of each wrong type
--- and with arguments missing.  Each call works, or raises a message of ours that names the
--- function or the argument; it prints those that do neither.  As a script:
---   accel-run spec/support/fuzz_around.lua FOLDER (an empty one, where trackers may write)
local accelerate = require "accelerate"
local core = require "accelerate.core"
local logging, profiler, tracking = accelerate.logging, accelerate.profiler, accelerate.tracking

local folder, say = arg[1], print
local stderr = io.stderr
io.stderr = assert(io.open("/dev/null", "w")) -- luacheck: ignore 122
rawset(_G, "print", function() end)

local VALUES = {
  { "nil", function() return nil end }, { "number", function() return 3 end },
  { "fraction", function() return -1.5 end },
  { "NaN", function() return 0 / 0 end }, { "string", function() return "text" end },
  { "boolean", function() return true end },
  { "empty table", function() return {} end }, { "list", function() return { 1, "two" } end },
  { "map", function() return { nonsense = 1 } end },
  { "odd keys", function() return { [{}] = 1 } end },
  { "nested", function() return { a = { b = { c = print } } } end },
  { "function", function() return function() end end }, { "tensor", function() return core.ones(2, 2) end },
  { "empty tensor", function() return core.zeros(0) end },
  { "0-d tensor", function() return core.tensor(1) end },
  { "userdata", function() return io.stdout end },
  { "thread", function() return coroutine.create(function() end) end },
  { "cdata", function() return require("ffi").new("int64_t", 5) end },
  { "object", function() return setmetatable({}, { __index = function() error "no such field" end }) end },
}

local made = 0
local function fresh(name)
  made = made + 1
  return ("%s/%d"):format(folder, made) .. (name or "")
end

local accelerator = accelerate.Accelerator()
local logger = logging.get_logger("fuzz", "ERROR")
local Own = tracking.class("Own")
Own.name, Own.requires_logging_directory, Own.tracker = "own", false, {}

--- A tracker that writes to a folder of its own: its second argument, or an option.
local function tracker(name, where)
  return function()
    local class = tracking[name]
    local t = where == "dir" and class("run", fresh())
      or class("run", { [where:match("%w+_?%w*")] = fresh() })
    t:start()
    return t
  end
end
local function writer() return tracking.SummaryWriter(fresh()) end
local function picture() return core.rand(3, 4, 4) end
local function always(value) return function() return value end end

--- name, function (or a maker of an object and the name of its method), good arguments.
local CALLS = {
  { "tracking.class", tracking.class, { always "X", always(nil) } },
  { "filter_trackers", tracking.filter_trackers, { always "jsonl", always "x" } },
  { "register_tracker_class", tracking.register_tracker_class, { always(Own) } },
  { "on_main_process", tracking.on_main_process, { always(function() end) } },
  { "SummaryWriter", tracking.SummaryWriter, { function() return fresh() end, always(nil) } },
  { "TensorBoardTracker", tracking.TensorBoardTracker,
    { always "run", function() return fresh() end, always(nil) } },
  { "WandBTracker", tracking.WandBTracker, { always "run", always(nil) } },
  { "CometMLTracker", tracking.CometMLTracker, { always "run", always(nil) } },
  { "JSONLTracker", tracking.JSONLTracker, { always "run", function() return fresh() end, always(nil) } },
  { "CSVTracker", tracking.CSVTracker, { always "run", function() return fresh() end, always(nil) } },
  { "get_logger", logging.get_logger, { always "x", always(nil) } },
  { "basicConfig", logging.basicConfig, { always(nil) } },
  { "schedule", profiler.schedule, { always { active = 1 } } },
  { "record_function", profiler.record_function, { always "x", always(function() end) } },
  { "profile", function(...) return accelerator:profile(...) end, { always(nil), always(function() end) } },
  { "init_trackers", function(...) return accelerator:init_trackers(...) end, { always "x", always(nil) } },
  { "log", function(...) return accelerator:log(...) end, { always { loss = 1 }, always(nil), always(nil) } },
  { "get_tracker", function(...) return accelerator:get_tracker(...) end, { always "x", always(nil) } },
}
local function method(make, name, ...) CALLS[#CALLS + 1] = { name, nil, { ... }, make = make } end
for _, name in ipairs { "add_scalar", "add_image", "add_images", "add_histogram" } do
  method(writer, name, always "tag", name == "add_scalar" and always(1) or picture, always(1))
end
method(writer, "add_text", always "tag", always "text", always(1))
method(writer, "add_scalars", always "tag", always { a = 1 }, always(1))
method(writer, "add_hparams", always { lr = 1 }, always { loss = 1 }, always(nil))
for _, t in ipairs { { "TensorBoardTracker", "dir" }, { "JSONLTracker", "dir" }, { "CSVTracker", "dir" },
  { "WandBTracker", "dir =" },
  { "CometMLTracker", "offline_directory" } } do
  local make = tracker(t[1], t[2])
  method(make, "store_init_configuration", always { lr = 1 })
  method(make, "log", always { loss = 1 }, always(nil))
  method(make, "log_images", function() return { a = picture() } end, always(nil))
  method(make, "log_table", always "name", always { columns = { "a" }, data = { { 1 } } })
end
for _, level in ipairs { "debug", "info", "warning", "error", "critical", "warning_once" } do
  method(always(logger), level, always "text %s", always "x", always(nil))
end
method(always(logger), "log", always "INFO", always "text", always(nil))
method(always(logger), "setLevel", always "ERROR")
method(always(logger), "isEnabledFor", always "ERROR")

local function prof() return accelerator:profile(function(p) return p end) end
method(prof, "key_averages", always(nil))
method(prof, "export_chrome_trace", function() return fresh(".json") end)
method(function() return prof():key_averages() end, "table", always(nil))

-- What is made with no folder given, and as a file called "text", goes to the working directory:
-- this script runs in FOLDER.
local wrong, calls = 0, 0
for _, call in ipairs(CALLS) do
  local name, good = call[1], call[3]
  for position = 0, #good do
    for _, value in ipairs(VALUES) do
      if position > 0 or value[1] == "nil" then
        local given = {}
        for i = 1, #good do
          if i == position then given[i] = value[2]() else given[i] = good[i]() end
        end
        local object = call.make and call.make()
        local fn = call[2] or object[name]
        calls = calls + 1
        local ok, err
        if object then
          ok, err = pcall(fn, object, unpack(given, 1, #good))
        else
          ok, err = pcall(fn, unpack(given, 1, #good))
        end
        err = tostring(err)
        if not ok and (err:find("attempt to", 1, true) or err:find("bad argument", 1, true)
          or err:find("no such field", 1, true)
          or err:find("lua/accelerate/", 1, true)) then
          wrong = wrong + 1
          say(("%s, argument %d as %s: %s"):format(name, position, value[1], err))
        end
      end
    end
  end
end
io.stderr = stderr -- luacheck: ignore 122
say(("%d calls, %d wrong"):format(calls, wrong))
