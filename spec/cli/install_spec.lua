-- What `make install` lays out: the host finds its Lua files and plugins beside itself, wherever
-- the folder is moved.
local host = require "spec.support.host"

local CODE = 'local x = require("accelerate.tensor").ones(2, 3); io.write(x:matmul(x:t()):sum():item(), ' ..
  '" ", package.path)'

local function capture(command)
  local pipe = io.popen(command .. " 2>&1; echo; echo $?")
  local text = pipe:read("*a")
  pipe:close()
  local out, status = text:match("^(.*)\n(%d+)\n$")
  return tonumber(status), out
end

describe("make install", function()
  it("makes a folder that runs from anywhere, moved and through a link", function()
    host.in_folder(function(folder)
      -- MAKEFLAGS: a make that runs this spec is not this one's parent
      local build = host.path:match("^(.*)/")
      local status, out = capture(
        ("env -u MAKEFLAGS -u MAKELEVEL make -s install OUT='%s' PREFIX='%s/first'"):format(build, folder))
      assert(status == 0, out)
      local function check(program)
        local got, printed = capture(("cd / && '%s' -e '%s'"):format(program, CODE))
        assert(got == 0, printed)
        assert.equal("12 ", printed:sub(1, 3))
        return printed:match("^12 ([^;]*)/lua/")
      end
      assert.equal(folder .. "/first/share/accel", check(folder .. "/first/bin/accel-run"))
      assert(os.rename(folder .. "/first", folder .. "/second"))
      assert.equal(folder .. "/second/share/accel", check(folder .. "/second/bin/accel-run"))
      assert(capture(("ln -s '%s/second/bin/accel-run' '%s/link'"):format(folder, folder)) == 0)
      assert.equal(folder .. "/second/share/accel", check(folder .. "/link"))
      assert(io.open(folder ..
        "/second/share/accel/licences/luajit"):read("*a"):find("Copyright %(C%) .* Mike Pall"))
      -- what editors and `help` read
      for _, name in ipairs { "meta/nn.lua", "meta/types.lua", "docs/editors.md", "docs/reference/nn.md" } do
        assert(io.open(folder .. "/second/share/accel/" .. name), name):close()
      end
      -- LuaJIT's modules came along
      assert.equal(0, (capture(("cd / && '%s/link' -jv -e ''"):format(folder))))
    end)
  end)

  it("puts everything below DESTDIR", function()
    host.in_folder(function(folder)
      local build = host.path:match("^(.*)/")
      assert.equal(0, (capture(("env -u MAKEFLAGS -u MAKELEVEL make -s install OUT='%s' DESTDIR='%s' " ..
        "PREFIX=/opt/accel"):format(build, folder))))
      local _, out = capture(("cd '%s' && find . -maxdepth 5 -not -name '*.so' | sort"):format(folder))
      for _, name in ipairs { "./opt/accel/bin/accel-run", "./opt/accel/lib/accel", "./opt/accel/share/accel",
        "./opt/accel/share/accel/licences" } do
        assert(out:find(name, 1, true), out)
      end
    end)
  end)
end)
