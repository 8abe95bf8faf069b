void cpu_red_fused_sum_sub(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  const long total = n0;
  #pragma omp parallel for schedule(static) if((n0 * n1) >= 16384)
  for (long o = 0; o < total; o++) {
    const long x0 = o;
    vf32 a0 = splat_f32(0);
    vf32 ea0 = splat_f32(0);
    vf32 p0_0 = splat_f32(0);
    vf32 p0_1 = splat_f32(0);
    vf32 p0_2 = splat_f32(0);
    vf32 p0_3 = splat_f32(0);
    {
      for (long k = 0; k < n1; k += 2048L) {
        const long stop = minl(k + 2048L, n1);
        long x1 = k;
        for (; x1 + 32L <= stop; x1 += 32L) {
          vf32 t1 = ld_f32(b0 + (x1 + (n1 * x0)), 8);
          p0_0 = add_f32(p0_0, t1);
          vf32 t2 = ld_f32(b0 + ((x1 + 8L) + (n1 * x0)), 8);
          p0_1 = add_f32(p0_1, t2);
          vf32 t3 = ld_f32(b0 + ((x1 + 16L) + (n1 * x0)), 8);
          p0_2 = add_f32(p0_2, t3);
          vf32 t4 = ld_f32(b0 + ((x1 + 24L) + (n1 * x0)), 8);
          p0_3 = add_f32(p0_3, t4);
        }
        for (; x1 + 8L <= stop; x1 += 8L) {
          vf32 t5 = ld_f32(b0 + (x1 + (n1 * x0)), 8);
          p0_0 = add_f32(p0_0, t5);
        }
        if (x1 < stop) { const int n = (int)(stop - x1);
          vf32 t6 = ld_f32(b0 + (x1 + (n1 * x0)), n);
          p0_0 = add_f32(p0_0, sel_f32(lt_i32(iota_i32(0), splat_i32(n)), t6, splat_f32(0)));
        }
        { vf32 y = sub_f32(add_f32(add_f32(p0_0, p0_1), add_f32(p0_2, p0_3)), ea0); vf32 z = add_f32(a0, y); ea0 = sub_f32(sub_f32(z, a0), y); a0 = z; } p0_0 = splat_f32(0); p0_1 = splat_f32(0); p0_2 = splat_f32(0); p0_3 = splat_f32(0);
      }
    }
    vf32 r0 = splat_f32(hsum_f32(a0));
    {
      const long stop = n1;
      long x1 = 0;
      for (; x1 + 8L <= stop; x1 += 8L) {
        vf32 t7 = ld_f32(b0 + (x1 + (n1 * x0)), 8);
        vf32 t8 = sub_f32(t7, r0);
        st_f32(b1 + (x1 + (n1 * x0)), t8, 8);
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        vf32 t9 = ld_f32(b0 + (x1 + (n1 * x0)), n);
        vf32 t10 = sub_f32(t9, r0);
        st_f32(b1 + (x1 + (n1 * x0)), t10, n);
      }
    }
  }
}
