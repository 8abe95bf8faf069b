void cpu_red_fused_exp_cumsum_mul(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long total = 20L;
  for (long o = 0; o < total; o++) {
    const long x0 = o;
    vf64 a0 = splat_f64(0);
    {
      const long stop = 131L;
      long x1 = 0;
      for (; x1 + 4L <= stop; x1 += 4L) {
        vf32 t1 = ld_f32(b0 + (131L * x0 + x1), 4);
        vf32 t2 = exp_f32(t1);
        vf64 t3 = cvt_f32_f64(t2);
        vf64 t4 = add_f64(a0, scan_sum_f64(t3));
        a0 = splat_f64(t4[3]);
        vf32 t5 = cvt_f64_f32(t4);
        vf32 t6 = mul_f32(t5, t1);
        st_f32(b1 + (131L * x0 + x1), t6, 4);
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        vf32 t7 = ld_f32(b0 + (131L * x0 + x1), n);
        vf32 t8 = exp_f32(t7);
        vf64 t9 = cvt_f32_f64(t8);
        vf64 t10 = add_f64(a0, scan_sum_f64(sel_f64(lt_i32(iota_i32(0), splat_i32(n)), t9, splat_f64(0))));
        a0 = splat_f64(t10[3]);
        vf32 t11 = cvt_f64_f32(t10);
        vf32 t12 = mul_f32(t11, t7);
        st_f32(b1 + (131L * x0 + x1), t12, n);
      }
    }
  }
}
