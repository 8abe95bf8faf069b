void cpu_poi_fused_sigmoid_mul(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long n0 = sizes[0];
  const long x0_blocks = ((4L * n0) + 4095L) / 4096L;
  const long total = 1L * x0_blocks;
  #pragma omp parallel for schedule(static) if((4L * n0) >= 16384)
  for (long o = 0; o < total; o++) {
    const long x0_from = o % x0_blocks * 4096L;
    const long x0_to = minl(x0_from + 4096L, (4L * n0));
    const long x0_rest = o / x0_blocks;
    {
      const long stop = x0_to;
      long x0 = x0_from;
      for (; x0 + 8L <= stop; x0 += 8L) {
        vf32 t1 = ld_f32(b0 + x0, 8);
        vf32 t2 = sigmoid_f32(t1);
        vf32 t3 = mul_f32(t2, t1);
        st_f32(b1 + x0, t3, 8);
      }
      if (x0 < stop) { const int n = (int)(stop - x0);
        vf32 t4 = ld_f32(b0 + x0, n);
        vf32 t5 = sigmoid_f32(t4);
        vf32 t6 = mul_f32(t5, t4);
        st_f32(b1 + x0, t6, n);
      }
    }
  }
}
