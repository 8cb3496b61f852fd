-- Runs a script on several ranks of the host under test: what only shows with more than one
-- process.
local host = require "spec.support.host"

local M = {}

--- Put before each script: `check(condition, message)` raises with the rank, `accelerate` and
--- `core` are there.
local PRELUDE = [[
local accelerate = require "accelerate"
local core = require "accelerate.core"
local rank, ranks = core.dist.rank(), core.dist.world_size()
local function check(condition, message)
  if not condition then error(("rank %d: %s"):format(rank, message or "check failed"), 2) end
end
local function text(t) return table.concat(t:totable(), " ") end
]]
local PRELUDE_LINES = select(2, PRELUDE:gsub("\n", "\n"))
M.prelude_lines = PRELUDE_LINES

--- Runs `script` on `n` ranks.  `arguments` come before the script (launch options), `given` after
--- it.
---@return integer status
---@return string stdout
---@return string stderr
function M.run(n, script, opts)
  opts = opts or {}
  local status, out, err
  host.in_folder(function(folder)
    local path = folder .. "/script.lua"
    local file = assert(io.open(path, "w"))
    file:write(PRELUDE, script)
    file:close()
    local words = { "--num_processes", tostring(n) }
    for _, word in ipairs(opts.launch or {}) do words[#words + 1] = word end
    words[#words + 1] = path
    for _, word in ipairs(opts.arguments or {}) do words[#words + 1] = word end
    status, out, err = host.run(words, { env = opts.env, seconds = opts.seconds or 60 })
  end)
  return status, out, err
end

--- The same, and raises unless it ends with status 0.  Returns what it printed.
---@return string stdout
---@return string stderr
function M.ok(n, script, opts)
  local status, out, err = M.run(n, script, opts)
  if status ~= 0 then error(("%d ranks: status %d\n%s\n%s"):format(n, status, out, err), 2) end
  return out, err
end

return M
