--- The profiler: times of ops, by name and by the line of the script that called them.
---
---   accelerator:profile(function(prof)
---     train()
---     print(prof:key_averages():table { sort_by = "self_cpu_time_total", row_limit = 10 })
---   end)
---
--- The core records an event for every op, gradient rule, optimizer pass and named range while a
--- profile runs; otherwise recording costs nothing. Times are the host's. On a GPU the profile
--- waits for each op, so that its time includes the device's work.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"
local sizes = require "accelerate.utils.sizes"

local fail = options.fail

local M = {}

---@class accelerate.ProfileEvent
---@field name string
---@field place string line of the script, "train.lua:12"; for a gradient rule, the line of its
---  forward pass
---@field category string cpu_op, backward, optimizer, user_annotation or collective
---@field start number microseconds since the profile began to record
---@field cpu_time number microseconds, including the ops that it calls
---@field self_cpu_time number microseconds, without the ops that it calls
---@field flops number
---@field bytes number tensor memory afterwards, less before
---@field parent integer? position of the enclosing event
---@field depth integer
---@field input_shapes string?
---@field stack string?
---@field modules string?

--- Returns the events so far as Lua tables.
local function read_events()
  local list, _, dropped = core._profile_events()
  for _, event in ipairs(list) do
    event.name, event.place = event.name or "?", event.place or ""
    event.self_cpu_time, event.self_bytes = event.cpu_time, event.bytes
    local parent = event.parent and list[event.parent]
    if parent then
      parent.self_cpu_time = parent.self_cpu_time - event.cpu_time
      parent.self_bytes = parent.self_bytes - event.bytes
    end
  end
  return list, dropped
end

-- ---- averages

local function time_text(us)
  if us >= 1e6 then return ("%.3fs"):format(us / 1e6) end
  if us >= 1e3 then return ("%.3fms"):format(us / 1e3) end
  return ("%.3fus"):format(us)
end

local SORTS = { "self_cpu_time_total", "cpu_time_total", "cpu_time", "self_cpu_time", "count", "flops",
  "cpu_memory_usage",
  "self_cpu_memory_usage", "key", "place" }

local TABLE = {
  sort_by = { "string", optional = true, one_of = SORTS },
  row_limit = { "integer", default = 100, min = -1 },
  max_name_column_width = { "integer", default = 55, min = 4 },
  header = { "string", optional = true },
}

--- Shortens a name in its middle; the end of a path says most.
local function cut(name, width)
  if #name <= width then return name end
  return "..." .. name:sub(-(width - 3))
end

local Averages = class.open("Averages")

--- Returns the rows as text.
---@param opts { sort_by: string?, row_limit: integer?, max_name_column_width: integer?, header:
---  string? }? sort_by: a field of the rows, largest first (key and place: in alphabetical order);
---  default: the order of first appearance. row_limit: default 100; -1: all
---@return string
function Averages:table(opts)
  opts = options.check("table", opts, TABLE)
  local rows = {}
  for i, row in ipairs(self) do rows[i] = { row, i } end
  local by = opts.sort_by
  if by then
    table.sort(rows, function(a, b)
      local x, y = a[1][by], b[1][by]
      if x == y then return a[2] < b[2] end
      if type(x) == "string" then return x < y end
      return x > y
    end)
  end
  local total = 0
  for _, row in ipairs(self) do total = total + row.self_cpu_time_total end
  local function share(us) return ("%.2f%%"):format(total > 0 and 100 * us / total or 0) end
  local width = opts.max_name_column_width
  local columns = {
    { "Name", function(r) return cut(r.key, width) end, left = true },
    { "Line", function(r) return cut(r.place, width) end, left = true },
    { "Self CPU %", function(r) return share(r.self_cpu_time_total) end },
    { "Self CPU", function(r) return time_text(r.self_cpu_time_total) end },
    { "CPU total %", function(r) return share(r.cpu_time_total) end },
    { "CPU total", function(r) return time_text(r.cpu_time_total) end },
    { "CPU time avg", function(r) return time_text(r.cpu_time) end },
  }
  if self._memory then
    columns[#columns + 1] = { "CPU Mem", function(r) return sizes.text(r.cpu_memory_usage) end }
    columns[#columns + 1] = { "Self CPU Mem", function(r) return sizes.text(r.self_cpu_memory_usage) end }
  end
  columns[#columns + 1] = { "# of Calls", function(r) return ("%d"):format(r.count) end }
  if self._shapes then
    columns[#columns + 1] = { "Input Shapes", function(r) return r.input_shapes or "" end, left = true }
  end
  if self._flops then
    columns[#columns + 1] = { "Total MFLOPs",
      function(r) return r.flops > 0 and ("%.3f"):format(r.flops / 1e6) or "--" end }
  end
  local lines = {}
  for i = 1, opts.row_limit < 0 and #rows or math.min(opts.row_limit, #rows) do
    local cells = {}
    for k, column in ipairs(columns) do cells[k] = column[2](rows[i][1]) end
    lines[i] = cells
  end
  local widths = {}
  for k, column in ipairs(columns) do
    widths[k] = #column[1]
    for _, cells in ipairs(lines) do widths[k] = math.max(widths[k], #cells[k]) end
  end
  local function line(cells)
    local parts = {}
    for k, column in ipairs(columns) do
      parts[k] = ("%" .. (column.left and "-" or "") .. math.min(widths[k], 99) .. "s"):format(cells[k])
    end
    return (table.concat(parts, "  "):gsub("%s+$", ""))
  end
  local heads, rules = {}, {}
  for k, column in ipairs(columns) do heads[k], rules[k] = column[1], ("-"):rep(widths[k]) end
  local out = {}
  if opts.header then out[1] = opts.header end
  for _, text in ipairs { line(rules), line(heads), line(rules) } do out[#out + 1] = text end
  for _, cells in ipairs(lines) do out[#out + 1] = line(cells) end
  out[#out + 1] = line(rules)
  out[#out + 1] = "Self CPU time total: " .. time_text(total)
  if self._dropped > 0 then
    out[#out + 1] = ("%d events were lost: there was no memory for them"):format(self._dropped)
  end
  return table.concat(out, "\n") .. "\n"
end

Averages.__tostring = function(self) return self:table() end

local GROUP = { group_by_line = { "boolean", default = true },
  group_by_input_shape = { "boolean", default = false } }

-- ---- the schedule

local NONE, WARMUP, RECORD, SAVE = "none", "warmup", "record", "record and save"

local SCHEDULE = {
  wait = { "integer", min = 0 }, warmup = { "integer", min = 0 }, active = { "integer", min = 1 },
  ["repeat"] = { "integer", default = 0, min = 0 }, skip_first = { "integer", default = 0, min = 0 },
}
SCHEDULE.wait.default, SCHEDULE.warmup.default = 0, 0

--- Returns a function that gives a step's action by its number (from 0): "none", "warmup",
--- "record", or "record and save" in the last step of a cycle. The first skip_first steps do
--- nothing. A cycle has `wait` steps without recording, `warmup` steps whose events are dropped,
--- and `active` steps whose events are kept. After `repeat` cycles nothing more is recorded (0:
--- cycles go on).
---@param opts { wait: integer?, warmup: integer?, active: integer, repeat: integer?, skip_first:
---  integer? }
---@return fun(step: integer): string
function M.schedule(opts)
  local o = options.check("schedule", opts, SCHEDULE)
  local length = o.wait + o.warmup + o.active
  return function(step)
    if step < o.skip_first then return NONE end
    step = step - o.skip_first
    if o["repeat"] > 0 and step >= o["repeat"] * length then return NONE end
    local at = step % length
    if at < o.wait then return NONE end
    if at < o.wait + o.warmup then return WARMUP end
    return at == length - 1 and SAVE or RECORD
  end
end

-- ---- a profile

local active  -- the running profile

--- Returns whether to wait for ops on a GPU.
local function check_devices(activities)
  local wait = activities == nil
  for _, activity in ipairs(activities or {}) do
    if activity == "xpu" or activity == "mtia" or activity == "hpu" then
      fail("profile: activities: there is no device of kind '%s' here, only cpu and cuda", activity)
    end
    if activity == "cuda" then
      wait = true
      if (core.device_count "cuda") == 0 then
        notice.main("profile: activities: there is no GPU here; 'cuda' records nothing")
      end
    end
  end
  return wait
end

-- Collectives are looked up in the core's table at every call. While a profile runs, it holds
-- versions that record a range.
local WATCHED = { "all_reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "barrier",
  "all_gather_bytes", "broadcast_bytes" }
local former = {}

local function leave_range(at, run, ...)
  core._profile_pop(at, run)
  return ...
end

local function watch()
  for _, name in ipairs(WATCHED) do
    local fn = core.dist[name]
    former[name] = fn
    core.dist[name] = function(...)
      local at, run = core._profile_push(name, true)
      return leave_range(at, run, fn(...))
    end
  end
end

local function unwatch()
  for _, name in ipairs(WATCHED) do core.dist[name] = former[name] end
end

--- Starts or stops recording as `action` requires.
local function transit(self, action)
  local recording = action == RECORD or action == SAVE or action == WARMUP
  if recording and not self._recording then
    core._profile_clear()
    self._list = nil
    core._profile_start(self._flags, self._flags.with_modules and require("accelerate.nn").Module.__call
      or nil)
  elseif action ~= WARMUP and self._action == WARMUP and recording then
    core._profile_stop()
    core._profile_clear()  -- drops the events of the warm-up
    core._profile_start(self._flags)
  elseif not recording and self._recording then
    core._profile_stop()
  end
  self._recording, self._action = recording, action
end

--- Moves the recorded events out of the core, which the next cycle overwrites.
local function keep(self)
  if self._recording then core._profile_stop() end
  self._recording = false
  self._list, self._dropped = read_events()
  core._profile_clear()
end

local function begin_step(self)
  if self._recording and self._schedule then
    self._step_at, self._step_run = core._profile_push(("ProfilerStep#%d"):format(self._step))
  end
end

local function end_step(self)
  if self._step_at then core._profile_pop(self._step_at, self._step_run) end
  self._step_at = nil
end

local function ready(self)
  keep(self)
  if self._on_ready then self._on_ready(self) end
end

local function events_of(self)
  if self._list then return self._list end
  if self._recording and self._action ~= WARMUP then return (read_events()) end
  return {}
end

local function quote(text) return require("accelerate.utils.json").encode(text) end

---@class accelerate.Profiler
local Profiler = properties.define("Profiler", {
  get = {
    --- Number of calls of step.
    step_num = function(self) return self._step end,
    current_action = function(self) return self._action end,
  },
  methods = {
    --- Ends a training step, for the schedule.
    step = function(self)
      if active ~= self then fail("profile: step was called after the profile ended") end
      end_step(self)
      local saved = self._action == SAVE
      if saved then ready(self) end
      self._step = self._step + 1
      if self._schedule then
        local action = self._schedule(self._step)
        if saved then self._action = NONE end
        transit(self, action)
      end
      begin_step(self)
    end,
    --- Returns the events of the last complete cycle; without a schedule, the events so far.
    ---@return accelerate.ProfileEvent[]
    events = function(self) return events_of(self) end,
    --- Returns the events added up by name and line; all steps are ProfilerStep*. Rows have key
    --- (the name), place, count; cpu_time_total, self_cpu_time_total (without the ops that it
    --- calls), cpu_time and self_cpu_time (for each call), in microseconds; flops; cpu_memory_usage
    --- and self_cpu_memory_usage in bytes; input_shapes. `:table(opts)` formats them as text.
    ---@param opts { group_by_line: boolean?, group_by_input_shape: boolean? }? group_by_line:
    ---  default true
    key_averages = function(self, opts)
      opts = options.check("key_averages", opts, GROUP)
      local flags = self._flags
      local rows, found = Averages(), {}
      rows._memory, rows._flops, rows._dropped = flags.profile_memory, flags.with_flops, self._dropped or 0
      rows._shapes = opts.group_by_input_shape and flags.record_shapes
      for _, e in ipairs(events_of(self)) do
        -- as in PyTorch, one row for all steps
        local name = e.name:find("^ProfilerStep#%d+$") and "ProfilerStep*" or e.name
        local key = name .. "\0" .. (opts.group_by_line and e.place or "") .. "\0" ..
          (rows._shapes and e.input_shapes or "")
        local row = found[key]
        if not row then
          row = { key = name, place = opts.group_by_line and e.place or "", category = e.category, count = 0,
            cpu_time_total = 0,
            self_cpu_time_total = 0, flops = 0, cpu_memory_usage = 0, self_cpu_memory_usage = 0,
            input_shapes = rows._shapes and e.input_shapes or nil }
          found[key] = row
          rows[#rows + 1] = row
        end
        row.count = row.count + 1
        row.cpu_time_total, row.self_cpu_time_total = row.cpu_time_total + e.cpu_time,
          row.self_cpu_time_total + e.self_cpu_time
        row.flops, row.cpu_memory_usage = row.flops + e.flops, row.cpu_memory_usage + e.bytes
        row.self_cpu_memory_usage = row.self_cpu_memory_usage + e.self_bytes
      end
      for _, row in ipairs(rows) do
        row.cpu_time, row.self_cpu_time = row.cpu_time_total / row.count, row.self_cpu_time_total / row.count
      end
      return rows
    end,
    --- Writes the events as a trace for chrome://tracing and Perfetto (the Trace Event Format).
    ---@param path string
    export_chrome_trace = function(self, path)
      options.value("export_chrome_trace", "path", path, { "string" })
      local out, why = io.open(path, "wb")
      if not out then fail("export_chrome_trace: %s", why) end
      local rank = core.dist.rank()
      out:write('{"schemaVersion": 1, "displayTimeUnit": "ms", "distributedInfo": {"rank": ', rank,
        ', "world_size": ', core.dist.world_size(),
        '}, "traceEvents": [\n',
        ('{"ph": "M", "pid": %d, "tid": 0, "name": "process_name", "args": {"name": "rank %d"}}'):format(rank,
        rank))
      local ok = true
      for _, e in ipairs(events_of(self)) do
        local args = { ('"Line": %s'):format(quote(e.place)) }
        if e.input_shapes then args[#args + 1] = ('"Input Dims": %s'):format(e.input_shapes) end
        if e.flops > 0 then args[#args + 1] = ('"flops": %.0f'):format(e.flops) end
        if self._flags.profile_memory then args[#args + 1] = ('"Bytes": %d'):format(e.bytes) end
        if e.stack then args[#args + 1] = ('"Call stack": %s'):format(quote(e.stack)) end
        if e.modules and e.modules ~= "" then
          args[#args + 1] = ('"Module Hierarchy": %s'):format(quote(e.modules))
        end
        ok = ok and out:write((',\n{"ph": "X", "cat": "%s", "name": %s, "pid": %d, "tid": 0, "ts": %.3f, ' ..
          '"dur": %.3f, "args": {%s}}'):format(
          e.category, quote(e.name), rank, e.start, e.cpu_time, table.concat(args, ", ")))
      end
      ok = ok and out:write("\n]}\n")
      if not out:close() or not ok then fail("export_chrome_trace: cannot write %s", path) end
    end,
  },
})

--- Runs fn(prof, ...) in a profile and returns its results. `prof` can be read afterwards, too.
---@param handler accelerate.ProfileKwargs
---@param fn fun(prof: accelerate.Profiler): ...
function M.profile(handler, fn, ...)
  scope.body("profile", fn)
  if active then fail("profile: another profile is under way; profiles cannot be inside one another") end
  local self = Profiler.new()
  self._flags = { record_shapes = handler.record_shapes, profile_memory = handler.profile_memory,
    with_stack = handler.with_stack,
    with_flops = handler.with_flops, with_modules = handler.with_modules,
    wait = check_devices(handler.activities) }
  self._schedule = handler.schedule_option and M.schedule(handler.schedule_option)
  self._on_ready, self._step, self._recording, self._action = handler.on_trace_ready, 0, false, NONE
  local good = false
  return scope.run(function()
    active = self
    watch()
    transit(self, self._schedule and self._schedule(0) or RECORD)
    begin_step(self)
  end, function()
    end_step(self)
    local last = self._recording and self._action ~= WARMUP
    if self._recording then core._profile_stop() end
    unwatch()
    active = nil
    if last and good then ready(self) elseif last then keep(self) end
    self._recording = false
    if not self._list then self._list = {} end
  end, function(...)
    return (function(...)
      good = true
      return ...
    end)(fn(...))
  end, self, ...)
end

--- Runs fn(...) as a named range of the running profile and returns its results. Without a profile
--- it only calls fn.
---@param name string
---@param fn function
---@param ... any arguments of fn
---@return any ...
function M.record_function(name, fn, ...)
  options.value("record_function", "name", name, { "string" })
  scope.body("record_function", fn)
  if not active then return fn(...) end
  local at, run
  return scope.run(function() at, run = core._profile_push(name) end,
    function() core._profile_pop(at, run) end, fn, ...)
end

return properties.strict("accelerate.profiler", M)
