void cpu_poi_copy(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long x1_blocks = (200L + 63L) / 64L;
  const long x0_blocks = (300L + 63L) / 64L;
  const long total = 1L * x1_blocks * x0_blocks;
  #pragma omp parallel for schedule(static)
  for (long o = 0; o < total; o++) {
    const long x1_from = o % x1_blocks * 64L;
    const long x1_to = minl(x1_from + 64L, 200L);
    const long x1_rest = o / x1_blocks;
    const long x0_from = x1_rest % x0_blocks * 64L;
    const long x0_to = minl(x0_from + 64L, 300L);
    const long x0_rest = x1_rest / x0_blocks;
    for (long x0 = x0_from; x0 < x0_to; x0 += 1)
      {
        const long stop = x1_to;
        long x1 = x1_from;
        for (; x1 + 8L <= stop; x1 += 8L) {
          vf32 t1 = (vf32){b0[(x0 + 300L * (x1 + 0L))], b0[(x0 + 300L * (x1 + 1L))], b0[(x0 + 300L * (x1 + 2L))], b0[(x0 + 300L * (x1 + 3L))], b0[(x0 + 300L * (x1 + 4L))], b0[(x0 + 300L * (x1 + 5L))], b0[(x0 + 300L * (x1 + 6L))], b0[(x0 + 300L * (x1 + 7L))]};
          st_f32(b1 + (200L * x0 + x1), t1, 8);
        }
        if (x1 < stop) { const int n = (int)(stop - x1);
          float t2[8];
          for (int l = 0; l < 8; l++) t2[l] = l < n ? b0[(x0 + 300L * (x1 + l))] : 0;
          vf32 t3 = ld_f32(t2, 8);
          st_f32(b1 + (200L * x0 + x1), t3, n);
        }
      }
  }
}
