/* image.c: JPEG and PNG through the system's libraries.
 *
 * Both libraries report errors by longjmp.  Data that must survive a jump is in a structure
 * outside the function that jumps. */
#include "image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

static int refuse(char *why, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static int refuse(char *why, size_t size, const char *fmt, ...)
{
  va_list list;
  va_start(list, fmt);
  vsnprintf(why, size, fmt, list);
  va_end(list);
  return 1;
}

/* `per_byte`: the most pixels that one byte can encode; a header that claims more is refused. */
static int take_room(ax_image *out, int64_t height, int64_t width, int channels, size_t bytes,
                     int64_t per_byte, char *why, size_t size)
{
  if (height < 1 || width < 1 || height > AX_IMAGE_MOST / width)
    return refuse(why, size, "%lld x %lld pixels; expected 1 to %lld", (long long)height, (long long)width,
                  (long long)AX_IMAGE_MOST);
  if (height * width / per_byte > (int64_t)bytes)
    return refuse(why, size, "says it holds %lld x %lld pixels; %zu bytes cannot hold that much",
                  (long long)height, (long long)width, bytes);
  out->height = height;
  out->width = width;
  out->channels = channels;
  out->pixels = malloc((size_t)(height * width) * (size_t)channels);
  return out->pixels
             ? 0
             : refuse(why, size, "no memory for %lld x %lld pixels", (long long)height, (long long)width);
}

static void release(ax_image *image)
{
  free(image->pixels);
  image->pixels = NULL;
}

/* ---- JPEG */

typedef struct jpeg_job {
  struct jpeg_error_mgr errors; /* first: the library passes a pointer to it */
  jmp_buf jump;
  char *why;
  size_t why_size;
} jpeg_job;

static void jpeg_fail(j_common_ptr info)
{
  jpeg_job *j = (jpeg_job *)info->err;
  char text[JMSG_LENGTH_MAX];
  info->err->format_message(info, text);
  snprintf(j->why, j->why_size, "%s", text);
  longjmp(j->jump, 1);
}

/* The library would fill missing or wrong data with grey; here that is an error.  Its other
 * warnings are about markers that do not matter for the pixels. */
static void jpeg_message(j_common_ptr info, int level)
{
  if (level < 0) switch (info->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_JPEG_EOF:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC: jpeg_fail(info); break;
    default: break;
    }
}

static void jpeg_silent(j_common_ptr info) { (void)info; }

/* The part that may jump out. */
static int jpeg_read(struct jpeg_decompress_struct *d, const uint8_t *bytes, size_t n, int channels,
                     ax_image *out, jpeg_job *j)
{
  jpeg_create_decompress(d);
  d->mem->max_memory_to_use = 1l << 30;
  jpeg_mem_src(d, bytes, (unsigned long)n);
  jpeg_read_header(d, TRUE);
  if (d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK)
    return refuse(j->why, j->why_size, "a JPEG in CMYK colours; expected grey or colour (convert it first)");
  d->out_color_space = channels == 1 || (channels == 0 && d->num_components == 1) ? JCS_GRAYSCALE : JCS_RGB;
  if (take_room(out, d->image_height, d->image_width, d->out_color_space == JCS_GRAYSCALE ? 1 : 3, n, 2048,
                j->why, j->why_size))
    return 1;
  jpeg_start_decompress(d);
  while (d->output_scanline < d->output_height) {
    JSAMPROW row = out->pixels + (size_t)d->output_scanline * (size_t)out->width * (size_t)out->channels;
    jpeg_read_scanlines(d, &row, 1);
  }
  jpeg_finish_decompress(d);
  return 0;
}

static int decode_jpeg(const uint8_t *bytes, size_t n, int channels, ax_image *out, char *why, size_t size)
{
  struct jpeg_decompress_struct d;
  jpeg_job j = { .why = why, .why_size = size };
  int bad;

  memset(&d, 0, sizeof d);
  out->pixels = NULL;
  d.err = jpeg_std_error(&j.errors);
  j.errors.error_exit = jpeg_fail;
  j.errors.emit_message = jpeg_message;
  j.errors.output_message = jpeg_silent;
  if (setjmp(j.jump) == 0) bad = jpeg_read(&d, bytes, n, channels, out, &j);
  else bad = 1;
  jpeg_destroy_decompress(&d);
  if (bad) release(out);
  return bad;
}

/* ---- PNG */

typedef struct png_job {
  const uint8_t *start, *at, *end;
  png_bytep *rows;
  char *why;
  size_t why_size;
} png_job;

static void png_give(png_structp png, png_bytep to, png_size_t n)
{
  png_job *j = png_get_io_ptr(png);
  if ((size_t)(j->end - j->at) < n) png_error(png, "the file ends too early");
  memcpy(to, j->at, n);
  j->at += n;
}

static void png_fail(png_structp png, png_const_charp text)
{
  png_job *j = png_get_error_ptr(png);
  snprintf(j->why, j->why_size, "%s", text);
  png_longjmp(png, 1);
}

static void png_silent(png_structp png, png_const_charp text) { (void)png, (void)text; }

/* The part that may jump out. */
static int png_read(png_structp png, png_infop info, int channels, ax_image *out, png_job *j)
{
  int colour, depth;

  png_set_read_fn(png, j, png_give);
  png_set_user_limits(png, 1 << 20, 1 << 20);
  png_read_info(png, info);
  colour = png_get_color_type(png, info);
  depth = png_get_bit_depth(png, info);
  if (depth == 16) png_set_strip_16(png);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colour == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
  png_set_strip_alpha(png);
  if (channels == 3 && !(colour & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png);
  if (channels == 1 && (colour & PNG_COLOR_MASK_COLOR))
    png_set_rgb_to_gray_fixed(png, PNG_ERROR_ACTION_NONE, 29900, 58700);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (take_room(out, png_get_image_height(png, info), png_get_image_width(png, info),
                png_get_channels(png, info), (size_t)(j->end - j->start), 8 * 1032, j->why, j->why_size))
    return 1;
  if (png_get_rowbytes(png, info) != (size_t)out->width * (size_t)out->channels)
    return refuse(j->why, j->why_size, "rows of %zu bytes, which is no picture of %d channels",
                  png_get_rowbytes(png, info), out->channels);
  if (!(j->rows = malloc((size_t)out->height * sizeof *j->rows)))
    return refuse(j->why, j->why_size, "no memory for its rows");
  for (int64_t y = 0; y < out->height; y++)
    j->rows[y] = out->pixels + (size_t)(y * out->width) * (size_t)out->channels;
  png_read_image(png, j->rows);
  png_read_end(png, NULL);
  return 0;
}

static int decode_png(const uint8_t *bytes, size_t n, int channels, ax_image *out, char *why, size_t size)
{
  png_job j = { .start = bytes, .at = bytes, .end = bytes + n, .why = why, .why_size = size };
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &j, png_fail, png_silent);
  png_infop info = png ? png_create_info_struct(png) : NULL;
  int bad;

  out->pixels = NULL;
  if (!info) bad = refuse(why, size, "no memory for libpng");
  else if (setjmp(png_jmpbuf(png)) == 0) bad = png_read(png, info, channels, out, &j);
  else bad = 1;
  if (png) png_destroy_read_struct(&png, info ? &info : NULL, NULL);
  free(j.rows);
  if (bad) release(out);
  return bad;
}

__attribute__((visibility("default"))) const ax_image_plugin *ax_image_get(void);

const ax_image_plugin *ax_image_get(void)
{
  static const ax_image_plugin plugin = { AX_IMAGE_ABI, decode_jpeg, decode_png, release };
  return &plugin;
}
