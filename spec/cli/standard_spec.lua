-- What the host changes in Lua's own library.
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local matches = require("spec.support.messages").matches

describe("print", function()
  it("shows plain tables, and all else as Lua does", function()
    local status, out, err = host.run({ "-e", [[
      local x = require("accelerate.tensor").ones(2, 3)
      print("shape", x.shape, nil, { a = { 1, "b" } }, {})
      print()
      print(setmetatable({}, { __tostring = function() return "own" end }), 1, true)
      local circle = {}
      circle.me = circle
      print(circle)
      print((tostring({}):gsub("0x%x+", "address")))
      print(select("#", print(nil, {})))
      print(pcall(print, setmetatable({}, { __tostring = function() error("no text", 0) end })))
    ]] })
    assert.are.equal(0, status, err)
    assert.are.equal(table.concat({ 'shape\t{ 2, 3 }\tnil\t{ a = { 1, "b" } }\t{}', "", "own\t1\ttrue",
      "{ me = <circle: the table that holds this> }", "table: address", "nil\t{}", "0", "false\tno text",
      "" },
      "\n"), out)
  end)
end)

describe("tostring", function()
  it("fails where __tostring asks for the text that it is to give", function()
    local status, out, err = host.run({ "-e", [[
      local circle = setmetatable({}, { __tostring = function(self) return tostring(self) end })
      print(pcall(tostring, circle))
      print(pcall(print, circle))
      print(pcall(string.format, "%s", circle))
      local a, b = {}, {}
      setmetatable(a, { __tostring = function() return tostring(b) end })
      setmetatable(b, { __tostring = function() return tostring(a) end })
      print(pcall(tostring, a))
      error(circle)
    ]] }, { seconds = 30 })
    assert.are.equal(1, status)
    assert.are.equal(("false\t(command line):1: stack overflow\n"):rep(3) ..
      "false\t(command line):6: stack overflow\n", out)
    matches(err, "^accel%-run: %(command line%):1: stack overflow\nstack traceback:\n")
  end)

  it("is otherwise Lua's own", function()
    local status, out, err = host.run({ "-e", [[
      print(tostring(nil), tostring(1.5, 2), tostring(true), tostring "x")
      print(pcall(function() local text = tostring() return text end))
      print(tostring(setmetatable({}, { __tostring = function() return "own" end })))
      print(pcall(tostring, setmetatable({}, { __tostring = function() error "no text" end })))
      local t = setmetatable({}, { __tostring = require("accelerate.core").tanh })
      print((select(2, pcall(function() local text = tostring(t) return text end)):match "^.-:%d+: tanh"))
    ]] })
    assert.are.equal(0, status, err)
    assert.are.equal("nil\t1.5\ttrue\tx\n" ..
      "false\t(command line):2: bad argument #1 to 'tostring' (value expected)\n" ..
      "own\nfalse\t(command line):4: no text\n(command line):6: tanh\n", out)
  end)
end)

describe("unpack", function()
  it("takes objects that are read by number, and all else as Lua does", function()
    local status, out, err = host.run({ "-e", [[
      local tensor, nn = require "accelerate.tensor", require "accelerate.nn"
      print(unpack(tensor.tensor { { 1, 2 }, { 3, 4 } }))
      print(table.unpack(nn.ModuleList { nn.ReLU(), nn.Tanh(), nn.Flatten() }, 2))
      print(unpack({ 1, nil, 3 }, 1, 3))
      print(unpack({ 5, 6, 7 }, 2))
      print(pcall(function() local a = unpack(nil) return a end))
      print(pcall(function() local a = unpack("abc") return a end))
      print(pcall(function() local a = unpack({}, 1, 1e8) return a end))
    ]] })
    assert.are.equal(0, status, err)
    assert.are.equal(table.concat({ "tensor([1., 2.])\ttensor([3., 4.])",
      "Tanh()\tFlatten(start_dim=2, end_dim=-1)", "1\tnil\t3", "6\t7",
      "false\t(command line):6: bad argument #1 to 'unpack' (table expected, got nil)",
      "false\t(command line):7: bad argument #1 to 'unpack' (table expected, got string)",
      "false\t(command line):8: too many results to unpack", "" }, "\n"), out)
  end)
end)

describe("require", function()
  it("tries a module again that did not load, whatever stopped it", function()
    host.in_folder(function(folder)
      local function write(name, text) disk.write(("%s/%s.lua"):format(folder, name), text) end
      write("fails_once", "tries = (tries or 0) + 1 if tries == 1 then error 'first' end return tries")
      write("large", "if not large_now then large_text = ('xx'):rep(2 ^ 30 + 5) end return 3")
      write("a", "return require 'b'")
      write("b", "return coroutine.wrap(function() return require 'a' end)()")
      write("main", [[
        package.path = arg[1] .. "/?.lua"
        print(pcall(require, "fails_once"))
        print(pcall(require, "fails_once"))
        print(select("#", require "fails_once"), package.loaded.fails_once)
        local ok, message = pcall(require, "large")
        print(ok, message)
        large_now = true
        print(pcall(require, "large"))
        print(pcall(require, "a"))
        print(pcall(require, "nowhere"))
      ]])
      local status, out, err = host.run({ folder .. "/main.lua", folder })
      assert.are.equal(0, status, err)
      matches(out, "^false\t[^\n]*fails_once.lua:1: first\ntrue\t2\n1\t2\n")
      matches(out, "false\t[^\n]*not enough memory\ntrue\t3\n")
      matches(out, "false\t[^\n]*loop of requires: module 'a' is required again while it is being loaded\n")
      matches(out, "false\tmodule 'nowhere' not found:\n\tno field package.preload%['nowhere'%]\n")
    end)
  end)
end)

describe("os.tmpname", function()
  local CODE = "local name = os.tmpname() assert(io.open(name)):close() os.remove(name) print(name)"

  it("makes a file in TMPDIR, else in /tmp", function()
    host.in_folder(function(folder)
      for given, expected in pairs { [folder] = folder, [""] = "/tmp" } do
        local status, out, err = host.run({ "-e", CODE }, { env = { TMPDIR = given } })
        assert.are.equal(0, status, err)
        assert.are.equal(expected, out:match "^(.*)/lua_%w+\n$")
      end
    end)
  end)

  it("names a folder that is not there", function()
    local status, _, err = host.run({ "-e", CODE }, { env = { TMPDIR = "/no/such folder" } })
    assert.are.equal(1, status)
    assert.is_truthy(err:find("os.tmpname: no file can be made in '/no/such folder': " ..
      "No such file or directory",
      1, true), err)
  end)
end)

describe("os.setlocale", function()
  it("keeps the numbers of C, whatever the language", function()
    host.in_folder(function(folder)
      if os.execute(("localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1"):format(
        folder)) ~= true then
        return pending "needs localedef and the source of de_DE (package locales)"
      end
      local status, out, err = host.run({ "-e", [[
        assert(os.setlocale("de_DE.UTF-8"):find("LC_TIME=de_DE.UTF-8", 1, true))
        print(os.date("!%B", 0), os.setlocale(nil, "numeric"), os.setlocale("de_DE.UTF-8", "numeric"))
        local path = os.tmpname()
        local file = io.open(path, "w")
        file:write("a\n3e-2\n1.5\n")
        file:close()
        local set = require("accelerate.data").read_csv(path, { float = "float64" })
        os.remove(path)
        print(set:get(1).a, set:get(2).a)
        print(pcall(require("accelerate.tensor").dropout, require("accelerate.tensor").zeros(2), 1.5))
        print(os.setlocale("C"), os.setlocale("no_SUCH"), pcall(os.setlocale, "C", "x"))
      ]] }, { env = { LOCPATH = folder } })
      assert.are.equal(0, status, err)
      matches(out, "^Januar\tC\tnil\n0.03\t1.5\nfalse\t[^\n]*got 1%.5\n")
      matches(out, "\nC\tnil\tfalse\tbad argument #2 to '[^\n]*invalid option 'x'%)\n$")
    end)
  end)
end)
