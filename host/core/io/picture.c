/* picture.c: pictures as tensors: decoding through the plugin, resizing, cropping. */
#define _GNU_SOURCE
#include "io.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "core/io/file.h"
#include "image.h"

/* ---- the plugin */

static ax_status find_plugin(const ax_image_plugin **out)
{
  static const ax_image_plugin *plugin;
  char path[4200];
  void *lib;

  *out = plugin;
  if (plugin) return AX_OK;
  snprintf(path, sizeof path, "%s/libax_image.so", ax_backend_dir());
  if (!(lib = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
    return ax_fail(AX_ENOIMPL,
                   "pictures need the plugin libax_image.so, which is built when libjpeg and libpng are "
                   "there: install libjpeg-dev and libpng-dev (Debian, Ubuntu) and run make again (%s)",
                   dlerror());
  const ax_image_entry entry = (ax_image_entry)dlsym(lib, AX_IMAGE_ENTRY);
  const ax_image_plugin *found = entry ? entry() : NULL;
  if (!found || found->abi != AX_IMAGE_ABI) {
    dlclose(lib);
    return ax_fail(AX_ENOIMPL, "%s was built for another version of this program: run make again", path);
  }
  *out = plugin = found;
  return AX_OK;
}

/* [h][w][c] to [c][h][w] */
static ax_status to_planes(const char *fn, const char *name, const ax_image *image, ax_tensor **out)
{
  const int64_t shape[3] = { image->channels, image->height, image->width },
                pixels = image->height * image->width;
  const ax_status st = ax_file_tensor(fn, name, AX_U8, 3, shape, out);
  const int n = image->channels;
  uint8_t *to;

  if (st != AX_OK) return st;
  to = ax_data(*out);
  if (n == 1) memcpy(to, image->pixels, (size_t)pixels);
  else
    for (int c = 0; c < n; c++)
      for (int64_t i = 0; i < pixels; i++) to[c * pixels + i] = image->pixels[i * n + c];
  return AX_OK;
}

ax_status ax_image_decode(const char *name, const void *bytes, size_t n, int channels, ax_tensor **out)
{
  const char *const fn = name ? "read_image" : "decode_image";
  const ax_image_plugin *plugin;
  const uint8_t *p = bytes;
  char why[300] = "";
  ax_image image = { 0 };
  ax_status st;
  int bad;

  *out = NULL;
  if (!name) name = "(bytes)";
  const bool jpeg = n >= 3 && p[0] == 0xff && p[1] == 0xd8 && p[2] == 0xff,
             png = n >= 8 && memcmp(p, "\x89PNG\r\n\x1a\n", 8) == 0;
  if (!jpeg && !png && n < 4)
    return AX_FILE_FAIL(AX_EIO, fn, name, "%zu bytes; expected a JPEG or PNG file", n);
  if (!jpeg && !png)
    return AX_FILE_FAIL(AX_EIO, fn, name, "neither JPEG nor PNG: it starts with %02x %02x %02x %02x", p[0],
                        p[1], p[2], p[3]);
  if ((st = find_plugin(&plugin)) != AX_OK) return st;
  bad = (jpeg ? plugin->jpeg : plugin->png)(bytes, n, channels, &image, why, sizeof why);
  if (bad) return AX_FILE_FAIL(AX_EIO, fn, name, "damaged %s: %s", jpeg ? "JPEG" : "PNG", why);
  st = to_planes(fn, name, &image, out);
  plugin->release(&image);
  return st;
}

ax_status ax_image_read(const char *path, int channels, ax_tensor **out)
{
  ax_bytes file;
  ax_status st;

  *out = NULL;
  if ((st = ax_file_map("read_image", path, &file)) != AX_OK) return st;
  st = ax_image_decode(path, file.data, file.n, channels, out);
  if (ax_bytes_check("read_image", path, &file) != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
    st = AX_EIO;
  }
  ax_bytes_free(&file);
  return st;
}

/* ---- resizing.  Each new pixel is a weighted mean of consecutive old ones, first along rows, then
 * along columns. */

typedef struct taps {
  int64_t first;
  int n;
  float *w;
} taps;

static ax_status check_picture(const char *fn, const ax_tensor *t)
{
  if (t->device.kind == AX_CPU && t->ndim == 3 && (t->dtype == AX_U8 || t->dtype == AX_F32)) return AX_OK;
  char shape[AX_SHAPE_TEXT];
  return ax_fail(AX_ESHAPE, "%s: expected a picture, uint8 or float32 [channels, height, width], got %s %s",
                 fn, ax_dtype_name((ax_dtype)t->dtype),
                 ax_shape_text(t->ndim, t->shape, shape, sizeof shape));
}

/* The weights are a triangle whose half width is a new pixel, but at least an old one.  One block
 * of memory. */
static taps *make_taps(int64_t from, int64_t to, bool antialias)
{
  const double scale = (double)from / (double)to, reach = antialias && scale > 1 ? scale : 1;
  const int most = (int)ceil(reach) * 2 + 1;
  taps *list = malloc((size_t)to * (sizeof *list + (size_t)most * sizeof(float)));
  float *w = list ? (float *)(list + to) : NULL;

  for (int64_t i = 0; list && i < to; i++) {
    const double centre = ((double)i + 0.5) * scale;
    int64_t lo = (int64_t)(centre - reach + 0.5), hi = (int64_t)(centre + reach + 0.5);
    double sum = 0;
    if (lo < 0) lo = 0;
    if (hi > from) hi = from;
    if (hi - lo > most) hi = lo + most;
    list[i] = (taps){ lo, (int)(hi - lo), w };
    for (int64_t k = lo; k < hi; k++) {
      const double x = fabs(((double)k - centre + 0.5) / reach), v = x < 1 ? 1 - x : 0;
      w[k - lo] = (float)v;
      sum += v;
    }
    for (int64_t k = 0; k < hi - lo; k++) w[k] = (float)(w[k] / sum);
    w += most;
  }
  return list;
}

/* Resizes one channel; `rows` has room for the h x width floats between the passes. */
static void resize_plane(const float *in, int64_t h, int64_t w, float *rows, float *out, const taps *ty,
                         int64_t height, const taps *tx, int64_t width)
{
  for (int64_t y = 0; y < h; y++)
    for (int64_t x = 0; x < width; x++) {
      float sum = 0;
      for (int k = 0; k < tx[x].n; k++) sum += tx[x].w[k] * in[y * w + tx[x].first + k];
      rows[y * width + x] = sum;
    }
  for (int64_t y = 0; y < height; y++) {
    memset(out + y * width, 0, (size_t)width * sizeof *out);
    for (int k = 0; k < ty[y].n; k++) {
      const float *row = rows + (ty[y].first + k) * width, v = ty[y].w[k];
      for (int64_t x = 0; x < width; x++) out[y * width + x] += v * row[x];
    }
  }
}

ax_status ax_image_resize(ax_tensor *image, int64_t height, int64_t width, bool antialias, ax_tensor **out)
{
  ax_tensor *whole = NULL, *result = NULL;
  taps *ty = NULL, *tx = NULL;
  float *in = NULL, *rows = NULL, *plane = NULL;
  ax_status st;

  *out = NULL;
  AX_TRY(check_picture("resize", image));
  const int64_t c = image->shape[0], h = image->shape[1], w = image->shape[2],
                shape[3] = { c, height, width };
  if (h < 1 || w < 1 || height < 1 || width < 1 || height > AX_IMAGE_MOST / width ||
      h > AX_IMAGE_MOST / width)
    AX_TRY(ax_fail(AX_ESHAPE, "resize: from %lld x %lld to %lld x %lld pixels cannot be done", (long long)h,
                   (long long)w, (long long)height, (long long)width));
  AX_TRY(ax_tensor_bring(image, &whole));
  AX_TRY(ax_tensor_new((ax_dtype)image->dtype, 3, shape, &result));
  ty = make_taps(h, height, antialias);
  tx = make_taps(w, width, antialias);
  in = malloc((size_t)(h * w) * sizeof *in);
  rows = malloc((size_t)(h * width) * sizeof *rows);
  plane = malloc((size_t)(height * width) * sizeof *plane);
  if (!ty || !tx || !in || !rows || !plane)
    AX_TRY(ax_fail(AX_ENOMEM, "resize: no memory for %lld x %lld pixels", (long long)h, (long long)width));
  for (int64_t k = 0; k < c; k++) {
    if (image->dtype == AX_F32) {
      resize_plane((const float *)ax_data(whole) + k * h * w, h, w, rows,
                   (float *)ax_data(result) + k * height * width, ty, height, tx, width);
      continue;
    }
    const uint8_t *from = (const uint8_t *)ax_data(whole) + k * h * w;
    uint8_t *to = (uint8_t *)ax_data(result) + k * height * width;
    for (int64_t i = 0; i < h * w; i++) in[i] = from[i];
    resize_plane(in, h, w, rows, plane, ty, height, tx, width);
    for (int64_t i = 0; i < height * width; i++) {
      const float v = plane[i] + 0.5f;
      to[i] = v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
    }
  }
  *out = result;
  result = NULL;
out:
  free(ty);
  free(tx);
  free(in);
  free(rows);
  free(plane);
  ax_tensor_release(whole);
  ax_tensor_release(result);
  return st;
}

/* ---- cropping */

#define CROP(T) \
  do { \
    const T *from = (const T *)ax_data(whole) + k * h * w; \
    T *to = (T *)ax_data(*out) + k * height * width, around = (T)fill; \
    for (int64_t y = 0; y < height; y++) \
      for (int64_t x = 0; x < width; x++) { \
        const int64_t sy = top + y, sx = left + (flip ? width - 1 - x : x); \
        to[y * width + x] = sy >= 0 && sy < h && sx >= 0 && sx < w ? from[sy * w + sx] : around; \
      } \
  } while (0)

ax_status ax_image_crop(ax_tensor *image, int64_t top, int64_t left, int64_t height, int64_t width, bool flip,
                        double fill, ax_tensor **out)
{
  ax_tensor *whole = NULL;
  ax_status st;

  *out = NULL;
  if ((st = check_picture("crop", image)) != AX_OK) return st;
  const int64_t c = image->shape[0], h = image->shape[1], w = image->shape[2],
                shape[3] = { c, height, width };
  const int64_t far = AX_IMAGE_MOST;
  if (height < 1 || width < 1 || height > AX_IMAGE_MOST / width || top < -far || top > far || left < -far ||
      left > far)
    return ax_fail(AX_ESHAPE, "crop: %lld x %lld pixels at (%lld, %lld) cannot be had", (long long)height,
                   (long long)width, (long long)top, (long long)left);
  if ((st = ax_tensor_bring(image, &whole)) != AX_OK) return st;
  if ((st = ax_tensor_new((ax_dtype)image->dtype, 3, shape, out)) == AX_OK)
    for (int64_t k = 0; k < c; k++) {
      if (image->dtype == AX_U8) CROP(uint8_t);
      else CROP(float);
    }
  ax_tensor_release(whole);
  return st;
}
