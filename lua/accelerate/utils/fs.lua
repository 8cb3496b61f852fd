--- The few file system calls that Lua lacks, through the C library.
local ffi = require "ffi"
local core = require "accelerate.core"

ffi.cdef [[
int mkdir(const char *path, unsigned int mode);
int access(const char *path, int mode);
char *strerror(int number);
typedef struct accelerate_dir accelerate_dir;
accelerate_dir *opendir(const char *path);
int closedir(accelerate_dir *dir);
/* glibc and musl on 64-bit Linux */
struct accelerate_dirent {
  uint64_t ino; int64_t off; unsigned short reclen; unsigned char type; char name[256];
};
struct accelerate_dirent *readdir(accelerate_dir *dir);
int open(const char *path, int flags, ...);
int close(int fd);
int unlink(const char *path);
int rmdir(const char *path);
int rename(const char *from, const char *to);
char *realpath(const char *path, char *to);
long readlink(const char *path, char *to, size_t size);
void free(void *memory);
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags);
]]
local C = ffi.C

local M = {}

local function reason() return ffi.string(C.strerror(ffi.errno())) end

---@return boolean
function M.exists(path) return C.access(path, 0) == 0 end

--- Opens nothing, so that a process without a free descriptor gets the right answer.
---@return boolean
function M.is_dir(path) return path ~= "" and C.access(path .. "/", 0) == 0 end

--- True for what exists and is not a directory.
function M.is_file(path) return M.exists(path) and not M.is_dir(path) end

--- Makes a directory and its parents.  True, or nil and the reason.
function M.make_dirs(path)
  local at = path:sub(1, 1) == "/" and "/" or ""
  for part in path:gmatch("[^/]+") do
    at = at .. part
    if not M.exists(at) and C.mkdir(at, 511) ~= 0 then  -- 511: 0777, less the umask
      local why = reason()
      if not M.is_dir(at) then return nil, ("cannot make the directory %s: %s"):format(at, why) end
    end
    at = at .. "/"
  end
  if not M.is_dir(path) then return nil, ("%s is not a directory"):format(path) end
  return true
end

--- Names in a directory, sorted, without `.` and `..`; nil and the reason when it cannot be read.
---@return string[]?
function M.list(path)
  local dir = C.opendir(path)
  if dir == nil then return nil, ("cannot read the directory %s: %s"):format(path, reason()) end
  local names = {}
  while true do
    local entry = C.readdir(dir)
    if entry == nil then break end
    local name = ffi.string(entry.name)
    if name ~= "." and name ~= ".." then names[#names + 1] = name end
  end
  C.closedir(dir)
  table.sort(names)
  return names
end

--- The whole of a regular file as a string; nil and the reason when it cannot be read, or has more
--- than `most` bytes (default: as many as a string can have). What is no regular file (a pipe, a
--- device) is refused without waiting for it.
---@type fun(path: string, most: integer?): string?, string?
M.read = core._read_file

--- The first `n` bytes of a regular file, or all where there are fewer; nil and the reason as with
--- read.
---@type fun(path: string, n: integer): string?, string?
M.head = core._file_head

--- Writes a file beside its place and renames it, so that a reader never sees half of it. `synced`:
--- it also survives a power cut. True, or nil and the reason; then nothing of it is left.
---@type fun(path: string, text: string, synced?: boolean): true?, string?
M.write = core._write_file

-- True, or nil and the reason, of a call of the C library.
local function outcome(status, what, path)
  if status == 0 then return true end
  return nil, ("cannot %s %s: %s"):format(what, path, reason())
end

--- Renames a file or directory; what had the name `to` is replaced, if it is no directory with
--- something in it. True, or nil and the reason.
function M.rename(from, to) return outcome(C.rename(from, to), "rename " .. from .. " to", to) end

local CURRENT, EXCHANGE = -100, 2 -- AT_FDCWD, RENAME_EXCHANGE

--- Swaps two names in one step. True, or nil and the reason: some file systems cannot.
function M.exchange(a, b)
  local known, status = pcall(function() return C.renameat2(CURRENT, a, CURRENT, b, EXCHANGE) end)
  if not known then return nil, "the C library has no renameat2" end
  return outcome(status, "exchange " .. a .. " with", b)
end

--- Removes a file, or a directory with all that is in it. Links are removed, not followed. True,
--- also where there is nothing, or nil and the reason.
function M.remove_tree(path)
  local EISDIR, EPERM, ENOENT = 21, 1, 2
  if C.unlink(path) == 0 then return true end
  local number = ffi.errno()
  if number == ENOENT then return true end
  if number ~= EISDIR and number ~= EPERM then return outcome(-1, "remove", path) end
  local names, why = M.list(path)
  if not names then return nil, why end
  for _, name in ipairs(names) do
    local ok, message = M.remove_tree(M.join(path, name))
    if not ok then return nil, message end
  end
  return outcome(C.rmdir(path), "remove", path)
end

--- The size of a file in bytes and the CRC-32C of its content, or nil and the reason. It is read by
--- as many threads; default 1. With keep = true the next reader of the file finds it mapped, until
--- forget_kept.
---@type fun(path: string, threads: integer?, keep: boolean?): integer?, integer|string
M.digest = core._file_digest

--- Unmaps the files that digest has kept and that no reader has taken over.
---@type fun()
M.forget_kept = core._forget_kept_files

--- Returns whether `name` can be the name of a file in a folder: not empty, not "." or "..",
--- without "/" and control characters. A name that a file says passes this before it becomes part
--- of a path.
---@return boolean
function M.is_plain_name(name)
  return type(name) == "string" and name ~= "" and name ~= "." and name ~= ".."
    and not name:find "[/%z\1-\31\127]"
end

--- Returns the path without links, of what is there; or nil and the reason.
---@param path string
---@return string?
---@return string? why
function M.real(path)
  local found = C.realpath(path, nil)
  if found == nil then return nil, ("cannot follow %s: %s"):format(path, reason()) end
  local text = ffi.string(found)
  C.free(found)
  return text
end

--- Returns whether a path is a link, also when what it points to is not there.
---@return boolean
function M.is_link(path) return C.readlink(path, ffi.new "char[1]", 1) >= 0 end

function M.join(dir, name) return (dir:gsub("/+$", "")) .. "/" .. name end

return M
