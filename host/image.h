/* image.h: the interface between the host and the plugin libax_image.so, which holds all that needs
 * libjpeg and libpng. */
#ifndef AX_IMAGE_H
#define AX_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define AX_IMAGE_ABI 1
#define AX_IMAGE_ENTRY "ax_image_get"
#define AX_IMAGE_MOST ((int64_t)1 << 28) /* pixels */

typedef struct ax_image {
  int64_t height, width;
  int channels;
  uint8_t *pixels; /* [height][width][channels]; freed with `release` */
} ax_image;

typedef struct ax_image_plugin {
  uint32_t abi;
  /* Returns 0, or 1 with the reason in `why`.  channels: 1, 3 or 0 (as many as the file has). */
  int (*jpeg)(const uint8_t *bytes, size_t n, int channels, ax_image *out, char *why, size_t why_size);
  int (*png)(const uint8_t *bytes, size_t n, int channels, ax_image *out, char *why, size_t why_size);
  void (*release)(ax_image *image);
} ax_image_plugin;

typedef const ax_image_plugin *(*ax_image_entry)(void);

#endif
