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
    {
      for (long x0_row = x0_from; x0_row < x0_to; x0_row += 8L)
        {
          const long x0_end = minl(x0_row + 8L, x0_to);
          long x1_done = x1_from;
          if (x0_row + 8L <= x0_to) {
            for (; x1_done + 8L <= x1_to; x1_done += 8L) {
              const long x1 = x1_done;
              vf32 m0[8];
              { const long x0 = x0_row;
                m0[0] = ld_f32(b0 + (x0 + 300L * (x1 + 0L)), 8);
                m0[1] = ld_f32(b0 + (x0 + 300L * (x1 + 1L)), 8);
                m0[2] = ld_f32(b0 + (x0 + 300L * (x1 + 2L)), 8);
                m0[3] = ld_f32(b0 + (x0 + 300L * (x1 + 3L)), 8);
                m0[4] = ld_f32(b0 + (x0 + 300L * (x1 + 4L)), 8);
                m0[5] = ld_f32(b0 + (x0 + 300L * (x1 + 5L)), 8);
                m0[6] = ld_f32(b0 + (x0 + 300L * (x1 + 6L)), 8);
                m0[7] = ld_f32(b0 + (x0 + 300L * (x1 + 7L)), 8);
              }
              transpose_f32(m0);
              for (long x0 = x0_row; x0 < x0_row + 8L; x0 += 1)
                {
                  st_f32(b1 + (200L * x0 + x1), m0[x0 - x0_row], 8);
                }
            }
          }
          for (long x0 = x0_row; x0 < x0_end; x0 += 1)
            {
              const long stop = x1_to;
              long x1 = x1_done;
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
  }
}
