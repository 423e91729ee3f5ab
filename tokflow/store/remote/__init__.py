"""A store at a URL: its objects, and a folder on this disk through which they are reached.

    s3://bucket/prefix                                          the store
      <dataset>/manifests/<stage>/<partition>/<fingerprint[:16]>.json    one for each output
      <dataset>/<stage>/<partition>/<fingerprint[:16]>/<digest[:16]>/<file>   its files
      <dataset>/manifests/exports/<name>/latest                 the fingerprint[:16] of the newest
      .verdicts/..., <dataset>/manifests/.verdicts/...          verdicts on gigatoken

    <cache>/<name of the place>/<dataset>/<stage>/<partition>/<fingerprint[:16]>/   on this disk

The folder on this disk has the layout of any store. Its manifests, verdicts and links are those of
the URL, as `cache.refresh` found them; its files come when they are opened (`cached_files`), and
go when the cache is full. An output is written there, and put at the URL before it takes its name
(`publication`): files first, under the digest of their manifest (`digest` is the sha256 of its
bytes), so that two writers whose bytes differ never write to one name; the manifest last, if no
other is there.
"""
