--- What begins with ":" at the prompt.
local chunks = require "accelerate.prompt.chunk"
local sizes = require "accelerate.utils.sizes"

local M = {}

M.HELP = [[
Type Lua. The value of the last statement is shown, unless a ";" ends it; it is _, and several are
_1, _2, ... A top-level `local` stays. Modules are there without require: nn, F, optim, data, tensor, ...

  ?name            signature and documentation: ?nn.Linear, ?x.add, ?accelerator.backward, ?nn
  help(value)      the same for a value
  :time chunk      how long it takes
  :mem chunk       the memory of tensors and of Lua that it takes
  :profile chunk   the ops that it calls, the longest first
  :ranks chunk     its values in all ranks, of a prompt of several (accel-run --num_processes 4 -i)
  :debug           the functions of the last error, with their locals; :debug 1: in rank 1
  help, exit, quit    also :help, :quit

Tab completes names, methods, options within { }, modules after require, and file names in strings.
Ctrl-R searches what was typed before; Ctrl-C stops what runs; Ctrl-D leaves.]]

local function seconds_text(s)
  if s >= 1 then return ("%.3f s"):format(s) end
  return s >= 1e-3 and ("%.3f ms"):format(s * 1e3) or ("%.1f us"):format(s * 1e6)
end

local around = {}

-- Each gets the chunk's function in a list, which gives it no name in tracebacks, and returns one
-- that measures it.
function around.time(held)
  return function()
    local core = require "accelerate.core"
    local from, cpu = core._monotonic(), os.clock()
    held[1]()
    local wall = core._monotonic() - from
    io.stdout:write(("%s (%s of all processors)\n"):format(seconds_text(wall),
      seconds_text(os.clock() - cpu)))
  end
end

function around.mem(held)
  return function()
    local core = require "accelerate.core"
    collectgarbage()
    core.reset_peak_memory_stats()
    local live, lua = core.memory_stats().live_bytes, collectgarbage("count")
    held[1]()
    local stats, made = core.memory_stats(), collectgarbage("count") - lua
    io.stdout:write(("tensors: %s more in use, %s at the peak; Lua: %s made\n"):format(
      sizes.text(stats.live_bytes - live), sizes.text(stats.peak_bytes - live), sizes.text(made * 1024)))
  end
end

function around.profile(held)
  return function()
    local profiler = require "accelerate.profiler"
    local kwargs = require("accelerate.utils").ProfileKwargs {}
    local profile
    profiler.profile(kwargs, function(prof)
      profile = prof
      held[1]()
    end)
    io.stdout:write(profile:key_averages():table { sort_by = "self_cpu_time_total", row_limit = 15 })
  end
end

-- The values of all ranks are shown when the chunk has ended.
function around.ranks(held, chunk)
  chunk.ranks = true
  return held[1]
end

local function alone(run) return { run = run, alone = true }, false end

-- The rank that looks at its last error; the others have nothing to do meanwhile.
local function debug_chunk(rest, name)
  local rank = rest:match("^%s*(%d*)%s*$")
  if not rank then return nil, (":debug takes the number of a rank, got '%s'"):format(rest:match("%S.*")) end
  return chunks.compile(('require("accelerate.prompt.debugger").look_back(%s);'):format(rank), name)
end

local plain = {
  debug = debug_chunk,
  help = function() return alone(function() print(M.HELP) end) end,
  quit = function() return alone(function() os.exit(0) end) end,
}

--- The names of the commands: a set.
---@return table<string, true>
function M.names()
  local set = {}
  for _, list in ipairs { around, plain } do
    for name in next, list do set[name] = true end
  end
  return set
end

local function unknown(word)
  local list = {}
  for name in next, M.names() do list[#list + 1] = name end
  table.sort(list)
  return (":%s is no command%s"):format(word, require("accelerate.utils.options").hint(word, list))
end

--- The chunk of a text that may be a command; as chunk.compile.
---@param text string
---@param name string
---@return accelerate.prompt.Chunk?
---@return string|boolean problem
function M.compile(text, name)
  local asked = text:match("^%s*%?%s*(.-)%s*$") or text:match("^%s*([%a_][%w_.:]*)%s*%?%s*$")
  if asked then
    local help = require "accelerate.prompt.help"
    return alone(function() help.show(asked ~= "" and asked or nil) end)
  end
  local called, status = text:match("^%s*(%l+)%s*%(?%s*(%d*)%s*%)?%s*$")
  local own = called and require("accelerate.prompt.globals").own(called)
  if own then return alone(function() own(tonumber(status)) end) end
  local word, rest = text:match("^%s*:(%a+)(.*)$")
  if not word then return chunks.compile(text, name) end
  if plain[word] then return plain[word](rest, name) end
  if not around[word] then return nil, unknown(word) end
  if word == "ranks" and require("accelerate.core").dist.world_size() == 1 then
    return nil, ":ranks needs several: accel-run --num_processes 4 -i"
  end
  if not rest:find("%S") then return nil, (":%s needs a chunk: :%s nn.Linear(2, 3)"):format(word, word) end
  local chunk, problem = chunks.compile(rest, name)
  if chunk then chunk.run = around[word]({ chunk.run }, chunk) end
  return chunk, problem
end

return M
