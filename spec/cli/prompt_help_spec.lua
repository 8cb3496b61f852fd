-- prompt/complete.lua, prompt/help.lua: what Tab and ? know.
local accelerate = require "accelerate"
local chunks = require "accelerate.prompt.chunk"
local complete = require "accelerate.prompt.complete"
local help = require "accelerate.prompt.help"
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"

local function candidates(text) return (complete.candidates(text)) end

local function has(text, ...)
  local set = {}
  for _, name in ipairs(candidates(text)) do set[name] = true end
  for _, name in ipairs { ... } do
    if not set[name] then error(("%q gives no %s"):format(text, name), 2) end
  end
end

local GLOBALS = { nn = nn, optim = optim, tensor = tensor, accelerate = accelerate }

describe("completion", function()
  setup(function()
    for name, value in pairs(GLOBALS) do rawset(_G, name, value) end
    rawset(_G, "spec_model", nn.Linear(2, 3))
    rawset(_G, "spec_x", tensor.ones(2))
  end)
  teardown(function()
    for name in pairs(GLOBALS) do rawset(_G, name, nil) end
    rawset(_G, "spec_model", nil)
    rawset(_G, "spec_x", nil)
  end)

  it("knows globals, keywords and the locals that stay", function()
    assert(chunks.compile("local spec_local = { inner = { deep = 1 } }", "=[1]")).run()
    has("spec_l", "spec_local")
    has("x = spec_m", "spec_model")
    has("prin", "print")
    has("whi", "while")
    has("acc", "accelerate")
    assert.same({ "inner" }, candidates "spec_local.")
    assert.same({ "deep" }, candidates "f(spec_local.inner.d")
    chunks.forget()
  end)

  it("knows members of modules, fields and methods of objects", function()
    assert.same({ "Linear" }, candidates "nn.Li")
    assert.same({ "relu", "relu6", "relu_" }, candidates "nn.functional.relu")
    has("spec_model.w", "weight")
    has("spec_model:", "parameters", "state_dict", "forward", "to")
    has("spec_x:", "add", "add_", "backward", "item")
    has("spec_x.", "shape", "grad", "add")
    assert.same({}, candidates "spec_x:sha") -- a field is no method
    has("accelerate.utils.", "set_seed", "pformat")
    assert.same({}, candidates "no_such_thing.x")
  end)

  it("knows the options of what is called", function()
    assert.same({ "bias" }, candidates "nn.Linear(2, 3, { bi")
    assert.same({ "device", "dtype" }, candidates "nn.Linear(2, f(3, { 4 }), { bias = g(1, 2), d")
    has("optim.Adam(spec_model:parameters(), { ", "lr", "betas", "weight_decay")
    has("accelerate.Accelerator{ mi", "mixed_precision")
    has("accelerate.DataLoaderConfiguration { ", "split_batches", "even_batches")
    has("spec_x:sum({ ", "dim", "keepdim")
    has("spec_x:sum({ dim = pri", "print") -- a value, not an option
  end)

  it("knows modules after require, and files in other strings", function()
    has("require 'accelerate.nn.co", "accelerate.nn.conv", "accelerate.nn.containers")
    has('require("accelerate.op', "accelerate.optim")
    host.in_folder(function(folder)
      for _, name in ipairs { "one.lua", "other.txt", ".hidden" } do
        io.open(folder .. "/" .. name, "w"):close()
      end
      os.execute(("mkdir '%s/of'"):format(folder))
      assert.same({ folder .. "/of/", folder .. "/one.lua", folder .. "/other.txt" },
        candidates("f('" .. folder .. "/o"))
      assert.same({ folder .. "/.hidden" }, candidates("f('" .. folder .. "/.h"))
    end)
  end)

  it("completes methods that Lua writes of ops", function()
    local former = rawget(_G, "sample")
    rawset(_G, "sample", { x = require("accelerate.core").ones(2), t = require "accelerate.tensor" })
    assert.same({ "quantile" }, (complete.candidates "sample.x:quan"))
    assert.same({ "shape" }, (complete.candidates "sample.x.sha"))
    assert.same({ "hstack" }, (complete.candidates "sample.t.hst"))
    rawset(_G, "sample", former)
  end)

  it("does not run what it completes", function()
    rawset(_G, "spec_model", setmetatable({ field = 1 }, { __index = function() error("no") end }))
    assert.same({ "field" }, candidates "spec_model.")
    assert.same({}, candidates "spec_model.nothing.x")
    assert.same({}, candidates "os.exit().")
    for _, text in ipairs { "", ".", ":", "{", "x.{", "'", "[[", "--[[", "f(", "a.b:c.", "1.", "..", "f{g{",
      ")}]", "x = " } do
      assert.is_table(candidates(text))
    end
  end)
end)

describe("help", function()
  it("has every heading of the reference pages", function()
    local pipe, n = io.popen("grep -h '^##' docs/reference/*.md"), 0
    for line in pipe:lines() do
      n = n + 1
      local name = line:match("^###? ([%w_.:]+)")
      assert.is_truthy(help.find(name) or help.find("tensor." .. name), line)
    end
    pipe:close()
    assert.is_true(n > 500)
  end)

  it("shows signature and documentation of modules' members, ops, methods and option tables", function()
    assert.matches("^nn%.Linear%(in_features, out_features, %[bias%], %[opts%]%)\n\ny = x W^T",
      help.text("nn.Linear"))
    assert.matches("^nn%.Linear%(", help.text("accelerate.nn.Linear"))
    assert.matches("^nn%.Linear%(", help.text("Linear"))
    assert.matches("^nn%.Linear%(", help.text(nn.Linear(2, 3)))
    assert.matches("^tensor%.add%(a, b, %[alpha = 1%]%)\n", help.text("tensor.add"))
    assert.matches("\n  even_batches: boolean, default true", help.text("accelerate.DataLoaderConfiguration"))
    assert.matches("^accelerate%.nn: modules", help.text(nn))
  end)

  it("finds the method of a value", function()
    rawset(_G, "spec_value", tensor.ones(2))
    assert.matches("^tensor%.add%(a, b, %[alpha = 1%]%)\n", help.text("spec_value.add"))
    assert.matches("^tensor%.add%(a, b, %[alpha = 1%]%)\n", help.text("spec_value:add_"))
    rawset(_G, "spec_value", nn.Linear(2, 3))
    assert.matches("^module:parameters%(", help.text("spec_value.parameters"))
    rawset(_G, "spec_value", accelerate.Accelerator())
    assert.matches("^accelerator:backward%(", help.text("spec_value.backward"))
    rawset(_G, "spec_value", { relu = nn.functional.relu })
    assert.matches("^tensor%.relu%(x%)\n", help.text("spec_value.relu"))
    rawset(_G, "spec_value", nil)
  end)

  -- Adds two numbers.
  -- Both must be there.
  local function mine(a, b) return a + b end

  it("shows the comment above a user's function", function()
    assert.matches("^this%(a, b%)\n\nAdds two numbers%.\nBoth must be there%.\ndefined at " ..
      ".*prompt_help_spec%.lua:%d+$",
      help.text(mine))
  end)

  it("names what is near", function()
    assert.matches("nothing is known of 'nn.Lineer'; did you mean 'nn.Linear'%?", help.text("nn.Lineer"))
    assert.matches("^state_dict has several meanings:\n", help.text("state_dict"))
    assert.matches("nothing is known of 'qqqq'$", help.text("qqqq"))
  end)
end)
