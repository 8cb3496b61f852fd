--- Where a model's files are: a folder, or a name in the local Hugging Face cache.

local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

--- Returns the folder of the cache in which Hugging Face's tools keep repositories.
---@return string? nil: the user has no home folder
function M.cache()
  local function set(name)
    local value = os.getenv(name)
    return value and value ~= "" and value or nil
  end
  local home = require("accelerate.host").hf_home()
  return set "HF_HUB_CACHE" or set "HUGGINGFACE_HUB_CACHE" or home and fs.join(home, "hub")
end

-- The commit that a file of refs/ says; nil where it is no name of a folder.
local function commit_in(path)
  local text = fs.read(path)
  local commit = text and text:match("^%s*(%S+)")
  return fs.is_plain_name(commit) and commit or nil
end

-- The snapshot of a repository that a revision (a branch, a tag or a commit) names, or nil and
-- what was looked for.
local function snapshot(cache, name, revision)
  local repository = fs.join(cache, "models--" .. name:gsub("/", "--"))
  if not fs.is_dir(repository) then return nil, repository end
  local commit = commit_in(fs.join(fs.join(repository, "refs"), revision)) or revision
  local path = fs.join(fs.join(repository, "snapshots"), commit)
  if fs.is_dir(path) then return path end
  return nil, path
end

--- Returns the folder of a model: the path itself where it is a folder; otherwise the snapshot
--- that the local Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface) has of a
--- repository "name" or "organisation/name". Nothing is downloaded.
---@param where string what messages begin with
---@param name string
---@param opts { revision: string, cache_dir: string? }
---@return string
function M.find(where, name, opts)
  if fs.is_dir(name) then return name end
  if fs.exists(name) then
    fail("%s: '%s' is a file; expected a folder with config.json and the weights", where, name)
  end
  local is_name = name:find("^[%w][%w%._-]*/?[%w%._-]*$") and not name:find("..", 1, true)
  local path, missing
  local cache = opts.cache_dir or M.cache()
  if is_name and cache then path, missing = snapshot(cache, name, opts.revision) end
  if path then return path end
  fail("%s: '%s' is no folder%s; nothing is downloaded: fetch it with `hf download %s`, or give a " ..
    "folder with config.json and the weights", where, name,
    missing and (" and the local Hugging Face cache has no %s"):format(missing) or "",
    is_name and name or "NAME")
end

--- Returns the path of the GGUF file that a call names, by the option gguf_file or by a path that
--- ends in ".gguf"; nil: it names none.
---@param where string
---@param name string
---@param opts { gguf_file: string?, revision: string, cache_dir: string? }
---@return string?
function M.gguf(where, name, opts)
  local file = opts.gguf_file
  if not file then
    if not name:find "%.gguf$" or fs.is_dir(name) then return nil end
    return fs.is_file(name) and name or fail("%s: there is no file '%s'", where, name)
  end
  if not fs.is_plain_name(file) then
    fail("%s: gguf_file must name a file in the folder, got %s", where, options.show(file))
  end
  local folder = M.find(where, name, opts)
  local path = fs.join(folder, file)
  if not fs.exists(path) then fail("%s: %s has no file '%s'", where, folder, file) end
  return path
end

local WEIGHTS = { "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
  "pytorch_model.bin.index.json" }

--- Returns the file of weights in a folder, or the index of several.
---@param where string
---@param folder string
---@return string
function M.weights(where, folder)
  for _, name in ipairs(WEIGHTS) do
    local path = fs.join(folder, name)
    if fs.exists(path) then return path end
  end
  fail("%s: %s has no weights; expected one of %s%s", where, folder, table.concat(WEIGHTS, ", "),
    require("accelerate.models.foreign").other_weights(folder))
end

return M
