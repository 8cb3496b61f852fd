-- prompt/chunk.lua, prompt/parser.lua: chunks as functions, and locals that stay.
local chunks = require "accelerate.prompt.chunk"
local parser = require "accelerate.prompt.parser"

-- Runs texts one after the other; returns the values of the last one.
local function run(...)
  local chunk, problem
  for i, text in ipairs { ... } do
    chunk, problem = chunks.compile(text, ("=[%d]"):format(i))
    if not chunk then error(problem, 0) end
    chunk.run()
  end
  return unpack(chunk.results or {}, 1, chunk.results and chunk.results.n or 0)
end

local function kinds(text)
  local list = {}
  for i, statement in ipairs(assert(parser.parse(text))) do
    list[i] = statement.kind .. ":" .. text:sub(statement.first, statement.last)
  end
  return list
end

describe("a chunk of the prompt", function()
  before_each(function() chunks.forget() end)

  it("gives the value of its last statement", function()
    assert.equal(5, (run "spec_x = 5; spec_x"))
    assert.same({ 1, nil, 3 }, { run "1, nil, 3" })
    assert.equal(7, (run "= 7"))
    assert.equal(3, (run "return 3 -- comment"))
    assert.equal(6, (run "local a = 2\nlocal b = 3\na * b"))
    assert.same({ 1, 2 }, { run "local function f() return 1, 2 end; f()" })
    assert.equal(0, select("#", run "spec_x = 5"))
    assert.equal(0, select("#", run "return"))
    assert.equal(0, select("#", run "do return 5 end"))
    rawset(_G, "spec_x", nil)
  end)

  it("keeps its top-level locals, as variables", function()
    assert.equal(3, (run("local a, b = 1, 2", "a + b")))
    assert.equal(2, (run("local a = 1", "local function f() return a end", "a = a + 1", "f()")))
    assert.equal(4,
      (run("local n = 0", "local function up() n = n + 1 end", "for _ = 1, 4 do up() end", "n")))
    assert.equal(nil, (run("do local inner = 1 end", "inner")))
    assert.equal(6, (run("local function f(n) return n == 0 and 1 or n * f(n - 1) end", "f(3)")))
    assert.equal(nil, rawget(_G, "a"))
  end)

  it("makes a new variable for a second local of one name", function()
    assert.same({ 1, 2 }, { run("local a = 1", "local function f() return a end", "local a = 2", "f(), a") })
    assert.same({ 1, 2 }, { run("local a = 1; local f = function() return a end; local a = 2", "f(), a") })
    assert.equal(2, (run("local a = 1", "local a = a + 1", "a")))
  end)

  it("is not compiled with the value that a variable had", function()
    local first = "local a = 3\nlocal function sum(n) local s = 0 for _ = 1, n do s = s + a end return s end"
    assert.equal(3000, (run(first, "sum(1000)")))
    assert.equal(7000, (run("a = 7", "sum(1000)")))
  end)

  it("keeps what was set before an error", function()
    pcall(run, "local a = 4; error('stop'); local b = 5")
    assert.same({ 4, nil }, { run "a, b" })
  end)

  it("knows when more lines are needed", function()
    for _, text in ipairs { "if x then", "f(", "{ 1,", "x =", "1 +", "[[a", "--[[a", "function f()", "not",
      "repeat", "for i = 1, 2 do", "a.", "local x =", "'a\\", "x:f", "return function()" } do
      assert.same({ text, true }, { text, select(2, chunks.compile(text, "=[1]")) })
    end
    for _, text in ipairs { "x x", "end", "'abc", "1 1", ")", "x = = 1", "local 5", "if end" } do
      local chunk, problem = chunks.compile(text, "=[1]")
      assert.is_nil(chunk)
      assert.matches("^%[1%]:1: ", problem)
    end
  end)

  it("takes statements apart where they end", function()
    assert.same({ "other:a = b (3)" }, kinds "a = b (3)")
    assert.same({ "local:local t = {}", "values:t.x" }, kinds "local t = {} t.x")
    assert.same({ "call:f()", "call:g 'x'" }, kinds "f() g 'x'")
    assert.same({ "values:f() + 1" }, kinds "f() + 1")
    assert.same({ "values:-x" }, kinds "-x")
    assert.same({ "values:function(a, ...) return a end" }, kinds "function(a, ...) return a end")
    assert.same({ "other:::again::", "other:goto again" }, kinds "::again:: goto again")
  end)

  it("reads every Lua file of the tree", function()
    local pipe, n = io.popen("find lua spec host bench -name '*.lua'"), 0
    for path in pipe:lines() do
      local file = io.open(path, "rb")
      n = n + 1
      assert(parser.parse((file:read("*a"):gsub("^#[^\n]*", ""))), path)
      file:close()
    end
    pipe:close()
    assert.is_true(n > 300)
  end)

  it("refuses what nests too deep, and does not crash", function()
    for _, open in ipairs { "(", "{", "f(", "do ", "function() ", "- ", "not ", "a.", "[[" } do
      local chunk, problem = chunks.compile(open:rep(100000), "=[1]")
      assert.is_nil(chunk)
      assert.is_true(problem == true or type(problem) == "string")
    end
  end)

  it("survives texts without sense", function()
    local pieces = { "x", "=", "local", "function", "end", "(", ")", "{", "}", "'", '"', "[[", "]]", "--",
      "\n", ";",
      "1", "::", "goto", "if", "then", "return", "..", ":", ",", "\\", "\0", "é", "for", "in", "do", "[" }
    local seed = 7
    local function random(n)
      seed = seed * 16807 % 2147483647
      return seed % n + 1
    end
    for _ = 1, 4000 do
      local words = {}
      for i = 1, random(12) do words[i] = pieces[random(#pieces)] end
      local text = table.concat(words, random(2) == 1 and " " or "")
      local chunk, problem = chunks.compile(text, "=[1]")
      local plain = loadstring(text)
      if plain then assert.is_truthy(chunk, text) end
      assert.is_true(chunk ~= nil or problem == true or type(problem) == "string", text)
    end
  end)
end)
