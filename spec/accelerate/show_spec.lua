-- utils/show.lua: values as readable text.
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local function text(value, options)
  options = options or {}
  options.width = options.width or 80
  return utils.pformat(value, options)
end

describe("utils.pformat", function()
  it("writes plain values as Lua reads them", function()
    assert.equal("5", text(5))
    assert.equal("nil", text(nil))
    assert.equal("false", text(false))
    assert.equal('"a\\n\\"b\\\\é\\xff\\x00"', text('a\n"b\\é\xff\0'))
  end)

  it("puts what fits on one line, sorted, and the rest one below the other", function()
    assert.equal("{}", text {})
    assert.equal('{ 1, 2, a = { b = 3 }, ["a b"] = "x" }', text { 1, 2, a = { b = 3 }, ["a b"] = "x" })
    assert.equal('{\n  first = "' .. ("x"):rep(30) .. '",\n  second = { 1, 2 },\n}',
      text({ second = { 1, 2 }, first = ("x"):rep(30) }, { width = 40 }))
  end)

  it("fills lines with short entries of a list", function()
    local list = {}
    for i = 1, 20 do list[i] = i end
    assert.equal("{\n  1, 2, 3, 4, 5, 6, 7, 8, 9, 10,\n  11, 12, 13, 14, 15, 16, 17,\n  18, 19, 20,\n}",
      text(list, { width = 32 }))
  end)

  it("shows a map whose keys are numbers with its keys", function()
    local map = require("accelerate.utils.yaml").decode "0: a\n2: b"
    assert.equal('{ [0] = "a", [2] = "b" }', text(map))
  end)

  it("counts what it leaves out", function()
    local list, map = {}, {}
    for i = 1, 1000 do list[i], map["k" .. i] = i, i end
    assert.equal("{ 1, 2, 3, ... 997 more }", text(list, { count = 3 }))
    assert.equal("{ k1 = 1, k10 = 10, ... 998 more }", text(map, { count = 2 }))
    assert.equal("{ a = { b = { ... } } }", text({ a = { b = { c = 1 } } }, { depth = 2 }))
    assert.equal('{ "' .. ("x"):rep(400) .. '"... 600 more bytes }',
      text({ ("x"):rep(1000) }, { width = 500 }))
    local wide = {}
    for i = 1, 100 do wide[i] = { list, list } end
    assert.is_true(#text(wide) < 20000)
  end)

  it("marks circles", function()
    local t = { inner = {} }
    t.inner.up, t.self = t, t
    assert.equal("{\n  inner = { up = <circle: 2 tables up> },\n  self = <circle: " ..
      "the table that holds this>,\n}",
      text(t))
    local shared = { 1 }
    assert.equal("{ { 1 }, { 1 } }", text { shared, shared })
  end)

  it("shows tensors within tables by shape and type, alone as print does", function()
    local x = tensor.ones(2, 2)
    assert.equal(tostring(x), text(x))
    assert.equal("{ tensor [2, 2] float32 }", text { x })
    assert.equal("{ tensor([1., 1.]) }", text { tensor.ones(2) })
    local names = {}
    for name in text(nn.Linear(30, 4):state_dict()):gmatch("(%w+) = ") do names[#names + 1] = name end
    assert.same({ "weight", "bias" }, names)
    tensor.release(x)
    assert.equal("{ tensor(released) }", text { x })
  end)

  it("shows modules by their names, objects by what they say, functions by their place", function()
    assert.matches("^module accelerate.nn, %d+ names\n  AdaptiveAvgPool1d ", text(nn))
    assert.matches("^{ nn = module accelerate.nn, %d+ names }$", text { nn = nn })
    assert.equal(tostring(nn.ReLU()), text(nn.ReLU()))
    assert.equal("class ReLU", text(nn.ReLU))
    assert.matches("^function%(a, b, %.%.%.%) at .*show_spec.lua:%d+$",
      text(function(a, b, ...) return a, b, ... end))
    assert.equal("function in C", text(math.sin))
    assert.matches('^DistributedType {\n  DEEPSPEED = "DEEPSPEED",\n', text(utils.DistributedType))
  end)

  it("is not broken by a metatable", function()
    local function no() error("no") end
    local bad = { __index = no, __len = no, __pairs = no, __ipairs = no, __eq = no, __lt = no, __concat = no }
    assert.equal("{ 1, a = 2 }", text(setmetatable({ 1, a = 2 }, bad)))
    assert.matches("^<could not be printed by its __tostring: .*no> {%s+1,?%s+}$",
      text(setmetatable({ 1 }, { __tostring = no })))
    assert.matches("not be printed.*an error that is a table",
      text(setmetatable({}, { __tostring = function() error {} end })))
    assert.matches("could not be printed", text(setmetatable({}, { __tostring = function() return 5 end })))
    assert.equal("{ 1 }", text(setmetatable({ 1 }, { __metatable = "hidden" })))
    assert.equal("{}", text(setmetatable({}, bad)))
    assert.equal("{ p = 1 }", text(setmetatable({}, { __pairs = function() return next, { p = 1 } end })))
    assert.equal('{ [1.5] = "x", [true] = 1, [<table>] = 2 }', text { [true] = 1, [{}] = 2, [1.5] = "x" })
  end)

  it("checks its options", function()
    assert.has_error(function() utils.pformat(1, { widht = 3 }) end)
  end)

  it("is what utils.show prints, without colours where there is no terminal", function()
    local status, out = host.run { "-e", "require('accelerate.utils').show({ 'a', b = 1 })" }
    assert.equal(0, status)
    assert.equal('{ "a", b = 1 }\n', out)
  end)
end)
