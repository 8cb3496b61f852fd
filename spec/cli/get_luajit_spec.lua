-- host/tools/get_luajit: where LuaJIT's source comes from, and the error when there is none.
local disk = require "spec.support.disk"
local host = require "spec.support.host"

local TREE = host.path:match("^(.*)/") .. "/luajit"

--- A folder of commands in which git, apt and pip fail.
local function make_stubs(folder)
  local stubs = folder .. "/stubs"
  os.execute(("mkdir -p '%s'"):format(stubs))
  for _, name in ipairs { "git", "apt-get", "pip", "pip3", "python3" } do
    local path = stubs .. "/" .. name
    local file = assert(io.open(path, "w"))
    file:write("#!/bin/sh\nexit 1\n")
    file:close()
    os.execute(("chmod +x '%s'"):format(path))
  end
end

--- Runs the tool with these commands first in PATH and a cache of its own.
local function get(folder, source, target)
  if not io.open(folder .. "/stubs/git") then make_stubs(folder) end
  local pipe = io.popen(("env -u MAKEFLAGS PATH='%s/stubs':\"$PATH\" XDG_CACHE_HOME='%s/cache' " ..
    "LUAJIT_SRC='%s' " ..
    "host/tools/get_luajit '%s' 2>&1"):format(folder, folder, source or "", target or folder .. "/got"))
  local text = pipe:read("*a")
  return pipe:close() ~= nil, text
end

--- Makes the stub of apt-get one that has a mirror with this archive.
local function give_apt(folder, archive)
  local file = assert(io.open(folder .. "/stubs/apt-get", "w"))
  file:write(([[
#!/bin/sh
state=. done=
for word in "$@"; do
  case $word in
    Dir::State=*) state=${word#*=} ;;
    --print-uris) . /etc/os-release; echo "'http://mirror/dists/$VERSION_CODENAME/InRelease' name 0" ;;
    update) test -d "$state/lists/partial" || exit 1; done=1 ;;
    source) test -d "$state/lists/partial" || exit 1; cp '%s' .; done=1 ;;
  esac
done
test -n "$done"
]]):format(archive))
  file:close()
end

local function in_source_tree(name, fn)
  it(name, function()
    if not io.open("host/tools/get_luajit") or not io.open(TREE .. "/.relver") then
      return pending("needs the tree that this was built in")
    end
    host.in_folder(fn)
  end)
end

describe("LuaJIT's source", function()
  in_source_tree("is a folder or an archive that the user names", function(folder)
    assert(os.execute(("tar -C '%s' -cf '%s/some.tar' luajit"):format(TREE:match("^(.*)/"), folder)))
    for _, source in ipairs { TREE, folder .. "/some.tar" } do
      local ok, text = get(folder, source)
      assert(ok, text)
      assert.equal(disk.read(TREE .. "/src/lj_record.c"), disk.read(folder .. "/got/src/lj_record.c"))
      assert.equal(disk.read(TREE .. "/.relver"), disk.read(folder .. "/got/.relver"))
      assert.is_nil(io.open(folder .. "/got/src/libluajit.a")) -- nothing of another build
    end
  end)

  in_source_tree("that the user names and that is no LuaJIT is refused", function(folder)
    for _, source in ipairs { folder, host.path, folder .. "/nothing" } do
      local ok, text = get(folder, source)
      assert.is_false(ok)
      assert.equal("get_luajit: LUAJIT_SRC=" .. source ..
        " is no folder or archive of a current LuaJIT 2.1 (it has no src/luajit_rolling.h)\n", text)
    end
  end)

  in_source_tree("that cannot be fetched ends with how to give it", function(folder)
    local ok, text = get(folder)
    assert.is_false(ok)
    assert(text:find("LuaJIT's source could not be fetched", 1, true)
      and text:find("make LUAJIT_SRC=PATH", 1, true), text)
    assert.is_nil(io.open(folder .. "/got/src/lua.h"))
  end)

  in_source_tree("comes through apt into a folder that is named from here, and from the cache after that",
    function(folder)
    local archive = (os.getenv("XDG_CACHE_HOME") or (os.getenv("HOME") or "") .. "/.cache") ..
      "/accel/luajit_2.1.0+openresty20250117.orig.tar.xz"
    if not io.open(archive) then
      return pending("needs the archive, which came to this machine by another way")
    end
    make_stubs(folder)
    give_apt(folder, archive)
    local target = "build/spec-luajit" .. folder:gsub("%W", "-")
    for k = 1, 2 do
      local ok, text = get(folder, nil, target)
      assert(ok, text)
      assert.equal(k == 1, text:find("through apt", 1, true) ~= nil)
      assert(io.open(target .. "/src/lj_record.c"))
      os.execute("rm -rf " .. target)
    end
  end)

  in_source_tree("in the cache is not used when it is damaged", function(folder)
    assert(os.execute(
      ("mkdir -p '%s/cache/accel' && head -c 9999 '%s' >'%s/cache/accel/lupa-2.8.tar.gz'"):format(folder,
      host.path, folder)))
    assert.is_false((get(folder)))
  end)
end)
