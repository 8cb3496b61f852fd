-- Small helpers: seeds, JSON, files, environment, lazily loaded modules.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local utils = accelerate.utils

describe("set_seed", function()
  it("seeds tensors and Lua's own numbers", function()
    utils.set_seed(5)
    local a, b = core.rand(3):totable(), math.random()
    utils.set_seed(5)
    assert.are.same(a, core.rand(3):totable())
    assert.are.equal(b, math.random())
    assert.error_matches(function() utils.set_seed(-1) end, "at least 0, got %-1")
    assert.error_matches(function() utils.set_seed(1, { device_specifc = true }) end,
      "did you mean 'device_specific'")
  end)

  it("adds the rank when asked, and ranks can agree again", function()
    ranks.ok(3, [[
      local utils = accelerate.utils
      local function all() return text(utils.gather(core.rand(1))) end
      utils.set_seed(5)
      local first = core.rand(1):item()
      check(utils.reduce(core.tensor({ first }), "max"):item() == first)
      utils.set_seed(5, { device_specific = true })
      local a = all()
      local n = {}
      for word in a:gmatch("%S+") do n[#n + 1] = word end
      check(n[1] ~= n[2] and n[2] ~= n[3], a)
      utils.synchronize_rng_states({ "torch" })
      n = {}
      for word in all():gmatch("%S+") do n[#n + 1] = word end
      check(n[1] == n[2] and n[2] == n[3])
    ]])
  end)
end)

describe("memory_stats", function()
  it("counts live bytes", function()
    collectgarbage()
    collectgarbage()
    local before = utils.memory_stats().live_bytes
    local t = core.empty(1000, 1000)
    assert.is_true(utils.memory_stats().live_bytes - before >= 4000000)
    core.release(t)
    assert.are.equal(before, utils.memory_stats().live_bytes)
  end)
end)

describe("json", function()
  it("writes sorted keys and reads back what it wrote", function()
    local value = { b = { 1, 2.5, -3e100 }, a = 'quote " back\\slash\nline\1', t = true, f = false,
      deep = { { x = {} } } }
    local text = json.encode(value)
    assert.are.equal('{"a": "quote \\" back\\\\slash\\nline\\u0001", "b": [1, 2.5, -3e+100], "deep": ' ..
      '[{"x": {}}], "f": false, "t": true}',
      text)
    assert.are.same(value, json.decode(text))
    assert.are.same(value, json.decode(json.encode(value, 2)))
    assert.are.equal("é😀", json.decode('"\\u00e9\\ud83d\\ude00"'))
    assert.are.same({ 0, 10, -0.5, 1e5, 1.5e-3, 120 }, json.decode "[0, 10, -0.5, 1E5, 1.5e-3, 1.2e+2]")
  end)

  it("takes no map whose keys are numbers for a list", function()
    local map = require("accelerate.utils.yaml").decode "0: a\n2: b"
    assert.error_matches(function() json.encode(map) end, "a map's keys must be strings, got a number")
    assert.error_matches(function() json.encode { 1, a = 2 } end, "a table with list and map entries")
  end)

  it("says what is wrong, and where", function()
    for text, message in pairs { ["{"] = "expected a key", ['{"a"'] = "expected ':'",
      ["[1"] = "expected ',' or ']'", ['"a'] = "without its end",
      ["[1]\n\nx"] = "text after", ['"\\q"'] = "bad escape", ["nope"] = "expected a value",
      ['"\\ud800"'] = "surrogate", ['"\\udc00"'] = "surrogate",
      ["[0x10]"] = "expected a value", ["[01]"] = "expected a value", ["1."] = "expected a value",
      ["-"] = "expected a value", ["1e"] = "expected a value", ["[1e999]"] = "beyond 1.8e308",
      [("["):rep(300)] = "nested too deep", [""] = "expected a value" } do
      local value, problem = json.decode(text)
      assert.is_nil(value)
      assert.is_truthy(problem:find(message, 1, true), text .. ": " .. problem)
    end
    assert.matches("line 3", select(2, json.decode("{\n\n1}")))
    assert.has_error(function() json.encode { f = print } end)
    assert.has_error(function() json.encode(0 / 0) end)
  end)
end)

describe("fs", function()
  it("makes, lists and tells apart", function()
    host.in_folder(function(folder)
      assert.is_true(fs.make_dirs(folder .. "/a/b/c"))
      assert.is_true(fs.make_dirs(folder .. "/a/b/c"))
      assert.is_true(fs.is_dir(folder .. "/a/b/c"))
      assert.is_true(fs.write(folder .. "/a/file", "text\0more"))
      assert.are.equal("text\0more", fs.read(folder .. "/a/file"))
      assert.are.same({ "b", "file" }, fs.list(folder .. "/a"))
      assert.is_true(fs.is_file(folder .. "/a/file"))
      assert.is_false(fs.is_file(folder .. "/a") or fs.is_dir(folder .. "/a/file")
        or fs.exists(folder .. "/none"))
      local made, why = fs.make_dirs(folder .. "/a/file/x")
      assert.is_nil(made)
      assert.matches("cannot make the directory .*a/file/x", why)
      assert.is_nil((fs.list(folder .. "/none")))
      assert.is_nil((fs.write(folder .. "/none/file", "x")))
    end)
  end)
end)

describe("the environment", function()
  it("reads truth words", function()
    for _, word in ipairs { "y", "YES", "t", "True", "on", "1" } do assert.is_true(env.str_to_bool(word)) end
    for _, word in ipairs { "n", "no", "F", "false", "OFF", "0" } do
      assert.is_false(utils.str_to_bool(word))
    end
    assert.error_matches(function() env.str_to_bool("maybe", "X") end,
      "X: expected one of y yes t true on 1, n no f false off 0, got 'maybe'")
  end)
end)

describe("modules", function()
  after_each(function() state.reset() end)

  it("load their members at first use and name the nearest for one that is not there", function()
    assert.are.equal(require "accelerate.nn", accelerate.nn)
    assert.error_matches(function() return accelerate.DataloaderConfiguration end,
      "did you mean 'DataLoaderConfiguration'")
    assert.error_matches(function() return utils.gathr end, "did you mean 'gather'")
    local later = require("accelerate.utils.properties").lazy("room", {}, { door = "use the window" })
    assert.error_matches(function() return later.door end, "room.door is not there yet: use the window")
  end)

  it("make no globals", function()
    local _, out = host.run { "-e", [[
      local before = {}
      for name in pairs(_G) do before[name] = true end
      local accelerate = require "accelerate"
      for _, name in ipairs(getmetatable(accelerate).__members) do local _ = accelerate[name] end
      for _, name in ipairs(getmetatable(accelerate.utils).__members) do local _ = accelerate.utils[name] end
      for name in pairs(_G) do if not before[name] then print(name) end end
    ]] }
    assert.are.equal("", out)
  end)
end)
