--- Calls every function in the metatables of the binding's userdata as no program would: finalisers
--- twice, with nil and with each other's objects; methods without their object, with another's and
--- after its end. It is a script because a defect may crash it:
---   accel-run spec/support/fuzz_handles.lua FOLDER
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"

local folder = assert(arg[1], "give a folder for files")

local function file(name, text)
  local f = assert(io.open(folder .. "/" .. name, "wb"))
  f:write(text)
  f:close()
  return folder .. "/" .. name
end

local csv, tokens = file("x.csv", "a,b\n1,2\n3,4\n"), file("x.bin", ("\1\0"):rep(64))
local function leaf()
  local t = tensor.ones(2, { requires_grad = true })
  t:register_hook(function() end)
  return t
end

-- One of each; made anew wherever one is used up.
local MAKE = {
  ["a csv reader"] = function() return core._csv(csv, ",", '"', 0) end,
  ["a file of tokens"] = function() return core._tokens(tokens, 2, 0) end,
  ["a gatherer"] = function() return core._gather({ tensor.rand(1000, 100) }) end,
  ["a worker"] = function()
    return core._worker_start(function(channel) while channel:receive() do end end)
  end,
  ["a tensor"] = function() return tensor.ones(2) end,
  ["a result"] = function() return leaf() * 2 end,
  ["a leaf with a hook"] = leaf,
  ["a generator"] = function() return tensor.Generator(1) end,
}
local names = {}
for name in pairs(MAKE) do names[#names + 1] = name end
table.sort(names)

local OTHERS = {
  { "nothing" }, { "nil", nil, n = 1 }, { "a number", 1 }, { "a string", "x" }, { "a table", {} },
  { "a function", print }, { "a file", io.stdout }, { "a proxy", newproxy(true) }, { "a cdata", 5LL },
}

local step = "" -- for messages
local function try(fn, ...)
  local ok, message = pcall(fn, ...)
  assert(ok or type(message) == "string", step .. ": raised no text")
end

-- ---- metatables: those of the objects, and all that the registry knows

local finalisers, classes, seen = {}, {}, {}
local function note(mt, name)
  local gc = rawget(mt, "__gc")
  if type(gc) ~= "function" or seen[mt] then return end
  seen[mt] = true
  finalisers[#finalisers + 1] = { name = tostring(rawget(mt, "__metatable") or name), gc = gc }
end

for _, value in pairs(debug.getregistry()) do
  if type(value) == "table" and rawget(value, "__metatable") then
    note(value, "in the registry")
    classes[value.__metatable] = true
  end
end
for _, name in ipairs(names) do
  local made = assert(MAKE[name]())
  local mt = debug.getmetatable(made)
  assert(type(getmetatable(made)) == "string", name .. " shows its metatable")
  note(mt, name)
end
assert(#finalisers >= 10, "only " .. #finalisers .. " finalisers were found: are they elsewhere now?")
for _, class in ipairs { "a csv reader", "a gatherer", "a worker", "a message", "a captured step",
  "a collective under way", "a file of tokens" } do
  assert(classes[class], class .. " is no class of the registry")
end

-- ---- finalisers

for _, f in ipairs(finalisers) do
  for _, other in ipairs(OTHERS) do
    step = ("__gc of %s with %s"):format(f.name, other[1])
    if other[2] == nil and not other.n then try(f.gc) else try(f.gc, other[2]) end
  end
  for _, name in ipairs(names) do
    step = ("__gc of %s with %s, twice"):format(f.name, name)
    local made = MAKE[name]()
    try(f.gc, made)
    try(f.gc, made)
  end
end

-- ---- methods

local function methods_of(made)
  local mt, list = debug.getmetatable(made), {}
  if type(mt.__index) == "table" then for k, fn in pairs(mt.__index) do list[k] = fn end end
  for k, fn in pairs(mt) do if type(fn) == "function" and k ~= "__gc" then list[k] = fn end end
  return list
end

for _, name in ipairs(names) do
  for method, fn in pairs(methods_of(MAKE[name]())) do
    for _, other in ipairs(OTHERS) do
      step = ("%s.%s of %s"):format(name, method, other[1])
      try(fn, other[2])
    end
    for _, wrong in ipairs(names) do
      step = ("%s.%s of %s"):format(name, method, wrong)
      local made = MAKE[wrong]()
      try(fn, made)
      try(fn, made, {})
      local own = debug.getmetatable(made)
      debug.setmetatable(made, debug.getmetatable(MAKE[name]())) -- an object in another's clothes
      try(fn, made)
      debug.setmetatable(made, own)
    end
    step = ("%s.%s after the end"):format(name, method)
    local made = MAKE[name]()
    debug.getmetatable(made).__gc(made)
    for _, a in ipairs { 1, {}, "x" } do try(fn, made, a, a, a) end
    collectgarbage()
  end
end

-- ---- objects used twice, or in a wrong order

step = "a gatherer"
local source = tensor.rand(1000, 100)
local g = core._gather({ source })
try(g.take, g)
g:start({ 1, 2, 3 }, true)
local many = {}
for i = 1, 5000 do many[i] = 1 end
for _ = 1, 20 do assert(not pcall(g.start, g, many, true)) end
assert(g:take()[3]:eq(source[3]):all():item())
try(g.take, g)

step = "a worker"
local w = core._worker_start(function(channel)
  assert(not pcall(channel.send, channel, 1) and not pcall(core._worker_wait, { channel }, 1, 0))
  while true do
    local x = channel:receive()
    if not x then return end
    channel:reply(x, 0, "done")
  end
end)
assert(not pcall(w.receive, w) and not pcall(w.reply, w, 1, 0))
w:send(7)
assert(core._worker_wait({ w, w }, 1, 10) == 7)
w:hang_up()
w:hang_up()
try(w.send, w, 8)
local _, why = core._worker_wait({ w }, 1, 10)
assert(why == "died", why)
local child = io.popen("sleep 0.2; echo x") -- another child, which no wait may reap
for _ = 1, 3 do assert(select(2, core._worker_wait({ w }, 1, 1)) == "died") end
assert(child:read("*a") == "x\n" and child:close())
w:close(0)
w:close(0)
assert(not pcall(core._worker_wait, { w }, 1, 0))

print(("%d finalisers, %d kinds of objects"):format(#finalisers, #names))
