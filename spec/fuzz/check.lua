--- The properties that a fuzz target in Lua holds.
---
--- A file of spec/fuzz/targets returns a table:
---   ending  what the name of the input's file ends in
---   read    function(path, bytes): the value of the input, or an error; called once with a file
---           that holds the input
---   prepare function(bytes, scratch): what the file holds instead of the input itself; scratch is
---           the path of a file that it may write
---   write   function(value, path): saves what was read; the file is read again and must give the
---           same value. A list of such functions: each. Returns false: not this value.
---   again   endings of the files that `write` makes, where they differ
---   repair  function(bytes): mutated bytes with their checksums made right
---   most    MiB of tensors and of Lua values that reading an input may take; default 32
---   nameless true: errors do not name the file
local core = require "accelerate.core"
local same = require "spec.fuzz.same"

-- What Lua itself says of mistakes in our own code: with a place in it, or without one. Text that
-- looks alike may be a quotation of the file.
local OURS = { "lua/accelerate/[%w_/]+%.lua:%d+: ", "bad argument #%d+ to '", "^attempt to ",
  "^stack overflow",
  "^not enough memory", "^C stack", "^error in " }

local COLLECT = 64  -- inputs between two looks at what is held

local function check_error(message, path, nameless)
  local kind = type(message)
  if kind ~= "string" then error("the error is a " .. kind .. ", not a text", 0) end
  local text = message:gsub("^spec/fuzz/[%w_/]+%.lua:%d+: ", "")
  for _, pattern in ipairs(OURS) do
    if text:find(pattern) then error("the error is of our own code: " .. text, 0) end
  end
  if not nameless and not text:find(path, 1, true) then error("the error names no file: " .. text, 0) end
  if text:find("[%z\1-\8\11-\31\127]") then
    error(("the error has control characters: %q"):format(text), 0)
  end
  if #text > 4000 + #path then error("the error is " .. #text .. " bytes long", 0) end
  if #text:gsub(path, "", 1) < 12 then error("the error says nothing: " .. text, 0) end
end

local function held()
  collectgarbage()
  collectgarbage()
  core.zeros(1)  -- what finalisers dropped is cleared by the next call
  collectgarbage()
  local s = core.memory_stats()
  return s.live_blocks, s.structs
end

---@param name string of the target
---@param folder string where files go
---@return fun(bytes: string) run raises where a property does not hold
---@return (fun(bytes: string): string)? repair
return function(name, folder)
  local target = require("spec.fuzz.targets." .. name)
  local most = (target.most or 32) * 2 ^ 20
  local path = folder .. "/input" .. (target.ending or "")
  local writers = type(target.write) == "function" and { target.write } or target.write or {}

  local function store(bytes)
    local f = assert(io.open(path, "wb"))
    f:write(bytes)
    f:close()
  end

  local function check_again(value)
    for i, write in ipairs(writers) do
      local second = folder .. "/again" .. (target.again and target.again[i] or target.ending or "")
      if write(value, second) ~= false then
        local ok, back = pcall(target.read, second)
        if not ok then error("what was written is refused: " .. tostring(back), 0) end
        local difference = same(value, back)
        if difference then error("what was written is read as another value: " .. difference, 0) end
      end
    end
  end

  local runs, blocks, structs = 0, nil, nil
  local function run(bytes)
    store(target.prepare and target.prepare(bytes, folder .. "/prepared") or bytes)
    core.reset_peak_memory_stats()
    local before, lua_before = core.memory_stats().live_bytes, collectgarbage("count")
    local ok, value = pcall(target.read, path, bytes)
    local took = math.max(core.memory_stats().peak_bytes - before,
      (collectgarbage("count") - lua_before) * 1024)
    if took > most then
      error(("%.0f bytes of memory for an input of %d"):format(took, #bytes), 0)
    end
    if ok then check_again(value) else check_error(value, path, target.nameless) end
    value = nil -- luacheck: ignore 311
    runs = runs + 1
    if runs % COLLECT == 1 then
      local now_blocks, now_structs = held()
      blocks, structs = blocks or now_blocks, structs or now_structs
      if now_blocks > blocks or now_structs > structs then
        error(("memory is held: %d blocks, %d structures, after %d and %d"):format(now_blocks, now_structs,
          blocks, structs), 0)
      end
    end
  end
  return run, target.repair
end
