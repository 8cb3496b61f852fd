-- lua/accelerate/prompt: what Tab offers, and the names that are there without require.
local complete = require "accelerate.prompt.complete"
local host = require "spec.support.host"
local nn, optim = require "accelerate.nn", require "accelerate.optim"

describe("completion", function()
  local model = nn.Sequential(nn.Linear(2, 2))
  local globals = { model = model, opt = optim.SGD(model:parameters(), { lr = 1 }), nn = nn,
    F = require "accelerate.nn.functional", data = require "accelerate.data",
    tensor = require "accelerate.tensor" }
  local former = {}
  setup(function()
    for name, value in pairs(globals) do
      former[name] = rawget(_G, name)
      rawset(_G, name, value)
    end
  end)
  teardown(function()
    for name in pairs(globals) do rawset(_G, name, former[name]) end
  end)

  local function offers(text)
    local set = {}
    for _, name in ipairs((complete.candidates(text))) do set[name] = true end
    return set
  end

  it("has the options of a call, as arguments of its signature or of its text say", function()
    for text, names in pairs {
      ["data.DataLoader(x, { "] = { "batch_size", "shuffle", "num_workers" },
      ["nn.Conv2d(1, 2, 3, {"] = { "stride", "padding", "bias" },
      ["tensor.sum(x, { k"] = { "keepdim" },
    } do
      local set = offers(text)
      for _, name in ipairs(names) do assert.is_true(set[name], text .. name) end
      assert.is_nil(set.opts)
      assert.is_nil(set.print)
    end
  end)

  it("has the functions of modules", function()
    assert.is_true(offers("F.re").relu)
    assert.is_true(offers("tensor.lin").linspace)
  end)

  it("has names behind what stands in brackets", function()
    assert.is_true(offers("model[1].").weight)
    assert.is_true(offers("print(model[1].weight:su").sum)
    assert.is_true(offers("opt.param_groups[1].").lr)
    assert.is_true(offers("opt['param_groups'][1].m").momentum)
    assert.same({}, offers("model[i]."))
  end)
end)

describe("the prompt's names", function()
  local function prompt(text)
    local status, out, err = host.run({ "-i" }, { stdin = text })
    return status, out, err
  end

  it("leave at exit and quit, with and without a call", function()
    for _, text in ipairs { "exit", "quit", "exit()", " quit ( )", "local a = 1; exit()" } do
      local status, out = prompt(text .. "\nprint 'on'\n")
      assert.equal(0, status, text)
      assert.equal("", out, text)
    end
    assert.equal(4, (prompt "exit(4)"))
  end)

  it("are variables where something was assigned to them", function()
    local _, out = prompt "quit = 3\nquit\nlocal exit = 4\nexit\nhelp = nil\nhelp\n"
    assert.matches("^3\n4\nType Lua%.", out)
  end)

  it("show help, and have F", function()
    local _, out = prompt "help\nF.relu(tensor.ones(1) - 3)\n"
    assert.matches("^Type Lua%..*\ntensor%(%[0%.%]%)\n$", out)
  end)

  it("show whole numbers whole as far as they are exact", function()
    local _, out = prompt "2^53\n-2^53\n123456789012345\n{ 2^53, [2^50] = 1 }\n2^60\n0.5\n1/0\n"
    assert.equal("9007199254740992\n-9007199254740992\n123456789012345\n" ..
      "{ 9007199254740992, [1125899906842624] = 1 }\n1.1529215046068e+18\n0.5\ninf\n", out)
  end)
end)
