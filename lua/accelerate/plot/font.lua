--- Smooth letters for pictures of pixels: Cairo's, where the system has the library and a font.
local ffi = require "ffi"

ffi.cdef [[
typedef struct { double x_bearing, y_bearing, width, height, x_advance, y_advance; } accelerate_cairo_extents;
void *cairo_image_surface_create(int format, int width, int height);
unsigned char *cairo_image_surface_get_data(void *surface);
int cairo_image_surface_get_stride(void *surface);
void cairo_surface_flush(void *surface);
void cairo_surface_destroy(void *surface);
void *cairo_create(void *surface);
void cairo_destroy(void *context);
int cairo_status(void *context);
void cairo_select_font_face(void *context, const char *family, int slant, int weight);
void cairo_set_font_size(void *context, double size);
void cairo_text_extents(void *context, const char *text, accelerate_cairo_extents *out);
void cairo_move_to(void *context, double x, double y);
void cairo_show_text(void *context, const char *text);
]]

local M = {}

local NAMES = { "libcairo.so.2", "libcairo.2.dylib" }
local A8 = 2 -- cairo_format_t: one byte of coverage a pixel
local SIZE = 13

--- A space's width, a line's height and the baseline within, in pixels.
M.CW, M.CH = 7, 17
local BASELINE = 13

local lib -- nil: not looked for; false: absent

-- Calls body(context, surface) with an empty mask; returns its result, and whether Cairo was
-- content.
local function with_mask(width, height, body)
  local surface = lib.cairo_image_surface_create(A8, width, height)
  local context = lib.cairo_create(surface)
  lib.cairo_select_font_face(context, "sans-serif", 0, 0)
  lib.cairo_set_font_size(context, SIZE)
  local fine, result = pcall(body, context, surface)
  local content = lib.cairo_status(context) == 0
  lib.cairo_destroy(context)
  lib.cairo_surface_destroy(surface)
  if not fine then error(result, 0) end
  return result, content
end

local function width_of(text)
  return with_mask(1, 1, function(context)
    local extents = ffi.new "accelerate_cairo_extents"
    lib.cairo_text_extents(context, text, extents)
    return extents.x_advance
  end)
end

-- A text that Cairo takes: without control characters, and in ASCII where it is no UTF-8.
local function clean(text)
  text = text:gsub("%c", " "):gsub("%z", " ")
  local _, content = width_of(text)
  return content and text or (text:gsub("[\128-\255]", "?"))
end

local function load()
  for _, name in ipairs(NAMES) do
    local found, library = pcall(ffi.load, name)
    if found then return library end
  end
  return false
end

--- Returns whether there are smooth letters.
---@return boolean
function M.is_there()
  if lib == nil then
    lib = load()
    if lib then
      local width, content = width_of("M")
      if not content or width <= 0 then lib = false end
    end
  end
  return lib ~= false
end

--- Returns the width of a text in pixels.
---@param text string
---@return number
function M.measure(text) return (width_of(clean(text))) end

--- Calls put(along, down, coverage) for the pixels of a text: from its corner at the top left, with
--- a coverage above 0 and up to 1.
---@param text string
---@param most integer pixels along the text; those beyond are left out
---@param put fun(along: integer, down: integer, coverage: number)
function M.draw(text, most, put)
  text = clean(text)
  local width = math.max(1, math.min(most, math.ceil(width_of(text)) + 2))
  with_mask(width, M.CH, function(context, surface)
    lib.cairo_move_to(context, 0, BASELINE)
    lib.cairo_show_text(context, text)
    lib.cairo_surface_flush(surface)
    local data = lib.cairo_image_surface_get_data(surface)
    local stride = lib.cairo_image_surface_get_stride(surface)
    if data == nil then return end -- Cairo had no memory
    for down = 0, M.CH - 1 do
      for along = 0, width - 1 do
        local coverage = data[down * stride + along]
        if coverage > 0 then put(along, down, coverage / 255) end
      end
    end
  end)
end

return M
