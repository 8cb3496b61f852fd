local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local scope = require "accelerate.utils.scope"
local message = require("spec.support.messages").message

describe("options", function()
  local SCHEMA = {
    lr = { "number", default = 0.1, min = 0 },
    momentum = { "number", default = 0, min = 0, below = 1 },
    reduction = { "string", default = "mean", one_of = { "mean", "sum", "none" } },
    betas = { "list", default = { 0.9, 0.999 } },
    steps = { "integer", above = 0 },
    hook = { "function", optional = true },
  }
  local function check(given) return options.check("Thing", given, SCHEMA) end

  it("shows lists by their length, and tensors by type and shape", function()
    local tensor = require "accelerate.tensor"
    assert.equal("a list of 2", options.show { 1, 2 })
    assert.equal("a list with the key 'lr'", options.show { 1, lr = 2 })
    assert.equal("a list with no entry 2", options.show { 1, nil, 3 })
    assert.equal("a table", options.show {})
    assert.equal("a table", options.show { lr = 1 })
    assert.equal("an int64 tensor of shape [3]", options.show(tensor.zeros(3, { dtype = "int64" })))
    assert.equal("a float32 tensor of shape []", options.show(tensor.zeros {}))
    local optim, w = require "accelerate.optim", tensor.ones(2):requires_grad_()
    assert.matches("SGD: a parameter group must be a table with params = list, got a list of 1",
      message(optim.Optimizer.add_param_group, optim.SGD({ w }), { tensor.ones(2):requires_grad_() }))
  end)

  it("fills in defaults and leaves optional ones nil", function()
    local o = check { steps = 3, lr = 1 }
    assert.same({ steps = 3, lr = 1, momentum = 0, reduction = "mean", betas = { 0.9, 0.999 } }, o)
  end)

  it("gives each caller its own copy of a default list", function()
    check({ steps = 1 }).betas[1] = 5
    assert.equal(0.9, check({ steps = 1 }).betas[1])
  end)

  it("knows a name by its initials", function()
    assert.equal("lr", options.nearest("learning_rate", { "betas", "lr", "weight_decay" }))
    assert.equal("weight_decay", options.nearest("wd", { "betas", "lr", "weight_decay" }))
    assert.is_nil(options.nearest("b", { "betas", "lr" }))
  end)

  it("names the nearest option for a misspelt one", function()
    assert.matches("Thing: unknown option 'momentun'; did you mean 'momentum'%?",
      message(check, { steps = 1, momentun = 0.9 }))
    assert.matches("did you mean 'reduction'%?", message(check, { steps = 1, Reductoin = "sum" }))
    assert.matches("unknown option 'zzzzzz'; known: betas, hook, lr, momentum",
      message(check, { steps = 1, zzzzzz = 1 }))
  end)

  it("tells a wrong type, a limit and a wrong word", function()
    assert.matches("option 'lr' must be a number, got '0.1'", message(check, { steps = 1, lr = "0.1" }))
    assert.matches("option 'lr' must be at least 0, got %-1", message(check, { steps = 1, lr = -1 }))
    assert.matches("option 'lr' must be at least 0, got %-?nan", message(check, { steps = 1, lr = 0 / 0 }))
    assert.matches("option 'momentum' must be at least 0 and below 1, got 1",
      message(check, { steps = 1, momentum = 1 }))
    assert.matches("option 'steps' must be above 0, got 0", message(check, { steps = 0 }))
    assert.matches("option 'steps' must be an integer, got 1.5", message(check, { steps = 1.5 }))
    assert.matches("option 'steps' must be an integer, got inf", message(check, { steps = math.huge }))
    assert.matches("option 'reduction' must be one of mean, sum, none, got 'meam'; did you mean 'mean'%?",
      message(check, { steps = 1, reduction = "meam" }))
    assert.matches("option 'steps' is missing %(expected an integer%)", message(check, {}))
    assert.matches("option 'hook' must be a function, got true", message(check, { steps = 1, hook = true }))
  end)

  it("refuses what is no table of options", function()
    assert.matches("options must be a table, got 3", message(check, 3))
    assert.matches("options are given by name, got a value at position 1; known: [%w_, ]*",
      message(check, { 3 }))
  end)

  it("takes several types, and callable objects as functions", function()
    local callable = setmetatable({}, { __call = function() end })
    assert.equal(callable, check({ steps = 1, hook = callable }).hook)
    local mixed = { x = { "number|string" } }
    assert.equal("a", options.check("f", { x = "a" }, mixed).x)
    assert.matches("option 'x' must be a number or a string, got true",
      message(options.check, "f", { x = true }, mixed))
  end)

  it("puts the caller's position before the message", function()
    local err = message(function() check { stepz = 1 } end)
    assert.matches("^[^\n]*options_spec%.lua:%d+: Thing: unknown option", err)
  end)

  it("tells options from other tables", function()
    assert.is_true(options.is_options({ lr = 1 }, SCHEMA))
    assert.is_false(options.is_options({}, SCHEMA))
    assert.is_false(options.is_options({ lr = 1, other = 2 }, SCHEMA))
    assert.is_false(options.is_options(setmetatable({ lr = 1 }, {}), SCHEMA))
  end)
end)

describe("class", function()
  local Animal = class("Animal")
  function Animal:init(name) self.name = name end
  function Animal:__tostring() return "animal " .. self.name end
  local Cat = class("Cat", Animal)
  function Cat:init(name, lives)
    Animal.init(self, name)
    self.lives = lives
  end

  it("makes instances and inherits methods and metamethods", function()
    local tom = Cat("Tom", 9)
    assert.equal("Tom", tom.name)
    assert.equal(9, tom.lives)
    assert.is_true(class.is(tom, Cat))
    assert.is_true(class.is(tom, Animal))
    assert.is_false(class.is(Animal("x"), Cat))
    assert.is_false(class.is("x", Cat))
    assert.is_true(class.derives(Cat, Animal))
    assert.equal(Cat, class.of(tom))
    assert.equal("class Cat", tostring(Cat))
  end)

  it("refuses arguments that no init takes", function()
    local Empty = class("Empty")
    assert.is_table(Empty())
    assert.matches("Empty: got 2 arguments, but the class has no init method",
      message(function() return { Empty(1, nil) } end))
  end)
end)

describe("scope", function()
  it("passes results through and leaves", function()
    local log = {}
    local a, b, c = scope.run(function() log[#log + 1] = "in" end, function() log[#log + 1] = "out" end,
      function(...) return ... end, 1, nil, 3)
    assert.same({ 1, nil, 3 }, { a, b, c })
    assert.same({ "in", "out" }, log)
  end)

  it("restores when the body raises, and keeps one traceback of the origin", function()
    local left = 0
    local function leave() left = left + 1 end
    local err = message(function()
      scope.run(nil, leave, function() scope.run(nil, leave, function() error("the first cause") end) end)
    end)
    assert.equal(2, left)
    assert.matches("the first cause", err)
    local _, tracebacks = err:gsub("stack traceback:", "")
    assert.equal(1, tracebacks)
  end)

  it("passes values that are not text on as they are", function()
    local thing = {}
    assert.equal(thing, message(scope.run, nil, function() end, error, thing))
  end)

  it("sets a field for a while", function()
    local object = { x = 1 }
    assert.equal(2, scope.with(object, "x", 2, function() return object.x end))
    assert.equal(1, object.x)
    message(scope.with, object, "x", 3, error, "no")
    assert.equal(1, object.x)
  end)
end)

describe("ordered", function()
  local function walk(t)
    local seen = {}
    for key, value in ordered.pairs(t) do seen[#seen + 1] = tostring(key) .. "=" .. tostring(value) end
    return table.concat(seen, " ")
  end

  it("walks plain tables in sorted order", function()
    assert.equal("1=d 2=c 10=e a=1 b=2", walk { b = 2, a = 1, [10] = "e", [2] = "c", "d" })
    assert.matches("a table with a table as key has no order", message(walk, { [{}] = 1 }))
  end)

  it("remembers the order of addition", function()
    local t = ordered.new()
    t.b = 1
    t.a = 2
    t.c = 3
    assert.equal("b=1 a=2 c=3", walk(t))
    t.b = 5
    assert.equal("b=5 a=2 c=3", walk(t))
    t.b = nil
    assert.equal("a=2 c=3", walk(t))
    t.b = 6
    assert.equal("a=2 c=3 b=6", walk(t))
    assert.same({ "a", "c", "b" }, ordered.keys(t))
    assert.equal(3, ordered.count(t))
  end)

  it("knows lists", function()
    assert.is_true(ordered.is_list {})
    assert.is_true(ordered.is_list { 1, 2, 3 })
    assert.is_false(ordered.is_list { 1, nil, 3 })
    assert.is_false(ordered.is_list { 1, x = 2 })
    local hole = { [0] = 1, [2] = 2 }
    rawset(hole, 1, true) -- the table keeps room for it, and # may count to 2
    hole[1] = nil
    for _, map in ipairs { hole, { [-1] = 1 }, { [1.5] = 1 }, { [0] = 1, 2 } } do
      assert.is_false(ordered.is_list(map))
    end
  end)
end)

describe("options.arguments", function()
  local SCHEMA = { max_steps = { "integer", default = 5 }, name = { "string", optional = true },
    fast = { "boolean", default = false } }

  it("reads a script's arguments", function()
    assert.same({ max_steps = 7, name = "3", fast = true },
      options.arguments("x.lua", { "--max-steps", "7", "--name=3", "--fast" }, SCHEMA))
    assert.same({ max_steps = 5, fast = false }, options.arguments("x.lua", { "--fast", "false" }, SCHEMA))
  end)

  it("names what is wrong", function()
    local function said(...) return select(2, pcall(options.arguments, "x.lua", { ... }, SCHEMA)) end
    assert.matches("x.lua: unknown option 'max_step'; did you mean 'max_steps'", said("--max_step", "3"))
    assert.matches("x.lua: expected an option such as %-%-fast, got '7'", said("7"))
    assert.matches("x.lua: option %-%-name needs a value", said("--name"))
    assert.matches("option 'max_steps' must be an integer, got 'many'", said("--max_steps", "many"))
  end)
end)
