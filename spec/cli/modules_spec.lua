--- The archive of compiled modules (host/script/modules.c): used while the files are those that it
--- was made from, and never seen.
local disk = require "spec.support.disk"
local host = require "spec.support.host"

local build = host.path:match("^(.*)/")

-- The files of an installation: the host, an archive, and a library of two modules.
local NEAR = "return { value = 1, fail = function() error('here') end, path = ... }\n"
local function installed(body)
  host.in_folder(function(folder)
    assert(os.execute(("mkdir -p '%s/bin' '%s/lib/accel' '%s/share/accel/lua/accelerate/far'"):format(folder,
      folder, folder)))
    assert(os.execute(("cp '%s' '%s/bin/'"):format(host.path, folder)))
    local lua = folder .. "/share/accel/lua"
    disk.write(lua .. "/accelerate/near.lua", NEAR)
    disk.write(lua .. "/accelerate/far/init.lua", "local a = ...\nreturn a\n")
    local archive = folder .. "/lib/accel/accelerate.modules"
    local status, _, err = host.run({ "host/tools/modules.lua", lua, archive })
    assert(status == 0, err)
    body(folder, lua, archive, function(code)
      local got, out, e = host.run({ "-e", code }, { path = folder .. "/bin/accel-run" })
      return got == 0 and out or e
    end)
  end)
end

-- What the searcher says: a function where the archive has the module.
local FROM_ARCHIVE = 'io.write(type((package.loaders[2]("accelerate.near"))), " ", ' ..
  'require("accelerate.near").value)'

describe("the archive of compiled modules", function()
  it("stands beside the plugins and has every module of the library", function()
    local text = disk.read(build .. "/accelerate.modules")
    local files = io.popen("find lua/accelerate -name '*.lua'")
    local n = 0
    for path in files:lines() do
      n = n + 1
      assert.is_truthy(text:find(disk.read(path), 1, true), path)
    end
    files:close()
    assert(n > 100)
  end)

  it("is used for a file that has not changed, and for no other", function()
    installed(function(_, lua, _, run)
      assert.equal("function 1", run(FROM_ARCHIVE))
      disk.write(lua .. "/accelerate/near.lua", (NEAR:gsub("1", "2"))) -- as many bytes
      assert.equal("nil 2", run(FROM_ARCHIVE))
      disk.write(lua .. "/accelerate/near.lua", NEAR .. "\n")
      assert.equal("nil 1", run(FROM_ARCHIVE))
    end)
  end)

  it("names the file where it is, also in another folder than that of the archive's making", function()
    installed(function(folder, lua, archive, run)
      local elsewhere = folder .. "/made/elsewhere"
      assert(os.execute(("mkdir -p '%s' && cp -R '%s/accelerate' '%s'"):format(elsewhere, lua, elsewhere)))
      assert.equal(0, (host.run { "host/tools/modules.lua", elsewhere, archive }))
      assert(os.execute(("rm -r '%s'"):format(elsewhere)))
      local out = run 'io.write(type((package.loaders[2]("accelerate.near"))))' ..
        run 'print("", pcall(require("accelerate.near").fail))' ..
        run 'io.write(require("accelerate.near").path, require("accelerate.far"))' ..
        run 'io.write(debug.getinfo(require("accelerate.near").fail).source)'
      assert.equal(("function\tfalse\t%s:1: here\naccelerate.nearaccelerate.far@%s")
        :format(host.shown_path(lua .. "/accelerate/near.lua"), lua .. "/accelerate/near.lua"), out)
    end)
  end)

  it("follows package.path", function()
    installed(function(folder, _, _, run)
      assert(os.execute(("mkdir '%s/mine' '%s/mine/accelerate'"):format(folder, folder)))
      disk.write(folder .. "/mine/accelerate/near.lua", "return { value = 7 }")
      assert.equal("nil 7", run(("package.path = '%s/mine/?.lua;' .. package.path\n%s"):format(folder,
        FROM_ARCHIVE)))
    end)
  end)

  it("is passed over when it is cut, of another form, or empty", function()
    installed(function(_, _, archive, run)
      local whole = disk.read(archive)
      for cut = 0, #whole - 1, 7 do
        disk.write(archive, whole:sub(1, cut))
        assert.matches("^%a+ 1$", run(FROM_ARCHIVE))
      end
      disk.write(archive, (whole:gsub("modules 1", "modules 2")))
      assert.equal("1", run 'io.write(require("accelerate.near").value)')
      -- code of another version of LuaJIT
      disk.write(archive, (whole:gsub("\27LJ.", "\27LJ\99")))
      assert.equal("nil 1", run(FROM_ARCHIVE))
      os.remove(archive)
      assert.equal("1", run 'io.write(require("accelerate.near").value)')
    end)
  end)
end)
