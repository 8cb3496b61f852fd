--- Logging on several ranks.
---
---   local logger = accelerate.logging.get_logger("train", "INFO")
---   logger:info("epoch %d begins", epoch)                        -- on the main process
---   logger:warning("odd batch", { main_process_only = false })   -- on every process
---   logger:info("%d items here", n, { in_order = true })         -- on all processes in turn
---
--- A line goes to stderr as `INFO:train:train.lua:12:[RANK 0] epoch 1 begins`, with the script's
--- line that called; `basicConfig` changes the form. Levels are Python's: DEBUG 10, INFO 20,
--- WARNING 30 (the default), ERROR 40, CRITICAL 50.
local env = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local terminal = require "accelerate.utils.terminal"

local fail = options.fail

local M = { DEBUG = 10, INFO = 20, WARNING = 30, ERROR = 40, CRITICAL = 50, NOTSET = 0 }

local WORDS = { "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "NOTSET" }
local NAME_OF = { [10] = "DEBUG", [20] = "INFO", [30] = "WARNING", [40] = "ERROR", [50] = "CRITICAL",
  [0] = "NOTSET" }

local root = M.WARNING
local levels = {}   -- of loggers, by name
local logged = {}   -- messages of warning_once so far

---@class accelerate.LogRecord
---@field name string name of the logger
---@field levelno integer
---@field levelname string
---@field message string with the rank before it
---@field pathname string the script that called
---@field filename string the last part of pathname
---@field lineno integer line of the call
---@field created number seconds since 1970
---@field process_index integer

local function level_of(where, level)
  if type(level) == "number" and level % 1 == 0 and level >= 0 then return level end
  if type(level) ~= "string" then
    fail("%s: expected a level such as 'INFO' or a whole number, got %s", where, options.show(level))
  end
  local word = level:upper()
  if word == "WARN" then word = "WARNING" elseif word == "FATAL" then word = "CRITICAL" end
  for _, known in ipairs(WORDS) do
    if word == known then return M[word] end
  end
  local near = options.nearest(word, WORDS)
  fail("%s: unknown level '%s'%s; choose between %s", where, level, near
    and (", did you mean '" .. near .. "'?") or "",
    table.concat(WORDS, ", "))
end

-- ---- output

-- Writes each line with one write(2), so that lines of several ranks do not mix.
local function to_stderr(text) io.stderr:write(text .. "\n") end

local format, datefmt = "%(levelname)s:%(name)s:%(filename)s:%(lineno)d:%(message)s", "%Y-%m-%d %H:%M:%S"
local handlers = { to_stderr }

local function formatted(record)
  return (format:gsub("%%%((%w+)%)(%-?%d*%.?%d*[sdf])", function(field, how)
    local value = record[field]
    if field == "asctime" then value = os.date(datefmt, record.created) end
    return ("%" .. how):format(value)
  end))
end

local FIELDS = { name = "s", levelno = "d", levelname = "s", message = "s", pathname = "s", filename = "s",
  lineno = "d", created = "f",
  process_index = "d", asctime = "s" }

local CONFIG = {
  level = { "string|integer", optional = true }, format = { "string", optional = true },
  datefmt = { "string", optional = true },
  filename = { "string", optional = true },
  stream = { "string", optional = true, one_of = { "stderr", "stdout" } },
  handlers = { "list", optional = true },
}

--- Sets where lines go, and their form. The defaults are stderr and level WARNING.
---@param opts { level: string|integer?, format: string?, datefmt: string?, filename: string?,
---  stream: ("stderr"|"stdout")?, handlers: (fun(text: string, record: accelerate.LogRecord))[]? }
---  level: for loggers without a level of their own; format: with fields such as %(asctime)s,
---  %(levelname)s, %(name)s, %(message)s, %(pathname)s, %(filename)s, %(lineno)d,
---  %(process_index)d; datefmt: as for os.date; filename: append lines to this file; handlers:
---  called with each line and its record, instead of writing it
function M.basicConfig(opts)
  opts = options.check("basicConfig", opts, CONFIG)
  local places = (opts.filename and 1 or 0) + (opts.stream and 1 or 0) + (opts.handlers and 1 or 0)
  if places > 1 then fail("basicConfig: give one of filename, stream and handlers") end
  local level = opts.level and level_of("basicConfig: level", opts.level)
  for field, how in (opts.format or ""):gmatch("%%%((%w+)%)%-?%d*%.?%d*(%a?)") do
    if not FIELDS[field] then
      fail("basicConfig: format: unknown field '%s'%s", field,
        options.hint(field, require("accelerate.utils.ordered").keys(FIELDS)))
    end
    if how ~= "s" and how ~= FIELDS[field] then
      fail("basicConfig: format: the field '%s' is written %%(%s)%s", field, field, FIELDS[field])
    end
  end
  for i, handler in ipairs(opts.handlers or {}) do
    if type(handler) ~= "function" then
      fail("basicConfig: handlers: entry %d must be a function, got %s", i, options.show(handler))
    end
  end
  if opts.filename then
    local out, why = io.open(opts.filename, "a")
    if not out then fail("basicConfig: filename: %s", why) end
    out:setvbuf("no")
    handlers = { function(text) out:write(text .. "\n") end }
  elseif opts.stream then
    local name = opts.stream
    handlers = { function(text)
      io[name]:write(text .. "\n")
      io[name]:flush()
    end }
  elseif opts.handlers then
    handlers = { unpack(opts.handlers) }
  end
  format, datefmt, root = opts.format or format, opts.datefmt or datefmt, level or root
end

-- ---- loggers

local CALL = { main_process_only = { "boolean", default = true }, in_order = { "boolean", default = false },
  stacklevel = { "integer", default = 1, min = 1 } }

--- Returns the script's file and line that called into this library, or `extra` frames further out.
local function caller(extra)
  local info = debug.getinfo(options.caller_level() + extra, "Sl")
  if not info then return "?", 0 end
  return info.short_src, info.currentline
end

local function emit(self, level, text, rank, extra)
  local path, line = caller(extra)
  local record = {
    name = self._name, levelno = level, levelname = NAME_OF[level] or ("Level %d"):format(level),
    process_index = rank,
    message = ("[RANK %d] %s"):format(rank, text), pathname = path, filename = path:match("[^/]*$"),
    lineno = line, created = os.time(),
  }
  local shown = formatted(record)
  terminal.beside_bars(function()
    for _, handler in ipairs(handlers) do handler(shown, record) end
  end)
end

--- Splits `text, values..., options`; formats the text when there are values.
local function read(where, text, ...)
  local n, opts = select("#", ...), nil
  local given = { ... }
  if n > 0 and options.is_options(given[n], CALL) then n, opts = n - 1, given[n]
  elseif n > 0 and type(given[n]) == "table" and getmetatable(given[n]) == nil then opts, n = given[n],
    n - 1 end
  -- a plain table that holds no options raises with the unknown name
  opts = options.check("logger:" .. where, opts, CALL)
  if n > 0 then
    if type(text) ~= "string" then
      fail("logger:%s: with values the first argument must be a format, got %s", where, options.show(text))
    end
    local ok, result = pcall(string.format, text, unpack(given, 1, n))
    if not ok then
      fail("logger:%s: '%s' does not fit its values: %s", where, text,
        (result:gsub("^bad argument", "argument")))
    end
    text = result
  end
  return tostring(text), opts
end

local function partial()
  local state = require "accelerate.state"
  if not state.initialized() then
    fail("logging: make an Accelerator or call PartialState() first: a logger has to know its rank")
  end
  return state.PartialState()
end

local function write(self, where, level, text, ...)
  local here = partial()
  local shown, opts = read(where, text, ...)
  if not self:isEnabledFor(level) then return end  -- also in order: a call below the level waits for no rank
  if opts.in_order then
    for rank = 0, here.num_processes - 1 do
      if rank == here.process_index then emit(self, level, shown, rank, opts.stacklevel - 1) end
      here:wait_for_everyone()
    end
  elseif here.is_main_process or not opts.main_process_only then
    emit(self, level, shown, here.process_index, opts.stacklevel - 1)
  end
end

local function at(name)
  local level = M[name:upper()]
  -- no tail call: it would drop a frame
  return function(self, text, ...) return (write(self, name, level, text, ...)) end
end

---@class accelerate.Logger
local methods = {
  --- Logs a text, or a format with its values. Options follow: main_process_only (default true);
  --- in_order (default false; true: all processes log, one after the other, so all must call it at
  --- one level); stacklevel (default 1: the calling line; 2: the caller of that).
  debug = at "debug", info = at "info", warning = at "warning", error = at "error", critical = at "critical",
  --- Logs at a level given by name or number.
  log = function(self, level, text, ...)
    return (write(self, "log", level_of("logger:log", level), text, ...))
  end,
  --- Logs a warning. A repetition with equal arguments in one process is not logged.
  warning_once = function(self, text, ...)
    partial()
    local shown, opts = read("warning_once", text, ...)
    local key = ("%s\0%s\0%s\0%s"):format(self._name, shown, tostring(opts.main_process_only),
      tostring(opts.in_order))
    if logged[key] then return end
    logged[key] = true
    return (write(self, "warning_once", M.WARNING, text, ...))
  end,
  --- Returns whether a record of that level would be written.
  isEnabledFor = function(self, level)
    return level_of("logger:isEnabledFor", level) >= self:getEffectiveLevel()
  end,
  getEffectiveLevel = function(self)
    local own = levels[self._name]
    return own and own > 0 and own or root
  end,
  setLevel = function(self, level) levels[self._name] = level_of("logger:setLevel", level) end,
}

local Logger = properties.define("Logger", {
  get = { name = function(self) return self._name end }, methods = methods,
  tostring = function(self)
    return ("Logger %s (%s)"):format(self._name, NAME_OF[self:getEffectiveLevel()]
      or self:getEffectiveLevel())
  end,
})

--- Makes a logger. It may be made before there is an Accelerator, but not used.
---@param name string name in the lines, such as the script's
---@param log_level string|integer|{ log_level: string|integer }|nil default: ACCELERATE_LOG_LEVEL,
---  else basicConfig's level, else WARNING. A level from here or the variable also becomes the
---  level of all loggers without one of their own.
---@return accelerate.Logger
function M.get_logger(name, log_level)
  options.value("get_logger", "name", name, { "string" })
  if type(log_level) == "table" then
    log_level = options.check("get_logger", log_level,
      { log_level = { "string|integer", optional = true } }).log_level
  end
  local where = "get_logger: log_level"
  if log_level == nil then log_level, where = env.text("ACCELERATE_LOG_LEVEL"), "ACCELERATE_LOG_LEVEL" end
  if log_level ~= nil then
    levels[name] = level_of(where, log_level)
    root = levels[name]
  end
  local self = Logger.new()
  self._name = name
  return self
end

return properties.strict("accelerate.logging", M)
