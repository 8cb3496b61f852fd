-- Globals in Lua, as the compiler sees them: nothing is set, and nothing is read but what Lua
-- itself provides.
local jutil = require "jit.util"

local STANDARD = {}
for name in ([[assert bit collectgarbage coroutine debug dofile error gcinfo getfenv getmetatable io
  ipairs jit load loadfile loadstring math module newproxy next os package pairs pcall print rawequal
  rawget rawlen rawset require select setfenv setmetatable string table tonumber tostring type unpack
  xpcall _G _VERSION arg]]):gmatch("%S+") do
  STANDARD[name] = true
end
local BUSTED = {}
for name in ([[describe context it pending before_each after_each setup teardown lazy_setup
  lazy_teardown strict_setup strict_teardown finally insulate expose assert spy stub mock randomize
  async]]):gmatch("%S+") do
  BUSTED[name] = true
end

-- opcode and operand D of an instruction
local function bytes(n) return n % 256, math.floor(n / 65536) % 65536 end

-- The opcode by which this compiler reads or sets a global: that of a chunk which does nothing
-- else.
local function opcode_of(code)
  local chunk = assert(loadstring(code))
  local pc = 1
  while true do
    local instruction = jutil.funcbc(chunk, pc)
    if not instruction then error("lint: no instruction for a global in: " .. code) end
    local opcode, d = bytes(instruction)
    if jutil.funck(chunk, -d - 1) == "probed_name" then return opcode end
    pc = pc + 1
  end
end

local GET, SET = opcode_of "return probed_name", opcode_of "probed_name = 1"

-- Calls fn(line, name, set) for each use of a global in a function and in those that it makes.
local function walk(proto, fn)
  local info = jutil.funcinfo(proto)
  for pc = 1, info.bytecodes - 1 do
    local opcode, d = bytes(jutil.funcbc(proto, pc))
    if opcode == GET or opcode == SET then
      fn(jutil.funcinfo(proto, pc).currentline, jutil.funck(proto, -d - 1), opcode == SET)
    end
  end
  for k = 1, info.gcconsts do
    local constant = jutil.funck(proto, -k)
    if type(constant) == "proto" then walk(constant, fn) end
  end
end

return function(tree, report)
  for path in tree:each({ lua = true }, { "lua/", "examples/", "bench/", "spec/", "host/" }) do
    local chunk, why = loadstring(tree:text(path):gsub("^#[^\n]*", ""), "=" .. path)
    local spec = path:find("^spec/") ~= nil
    if not chunk then report(path, tonumber(why:match(":(%d+):")) or 1, "does not compile: " .. why)
    else
      walk(chunk, function(line, name, set)
        if set then report(path, line, ("sets the global %s"):format(name))
        elseif not STANDARD[name] and not (spec and BUSTED[name]) then
          report(path, line, ("reads the global %s, which is not Lua's"):format(name))
        end
      end)
    end
  end
end
