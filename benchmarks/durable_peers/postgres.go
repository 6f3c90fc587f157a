// PostgreSQL with pgx: a pool, and a statement that each connection prepares once.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v4/pgxpool"
)

func main() {
	size := os.Getenv("POOL")
	pool, err := pgxpool.Connect(context.Background(),
		os.Getenv("PLANTS_STORE")+"?pool_max_conns="+size+"&pool_min_conns="+size)
	if err != nil {
		log.Fatal(err)
	}
	serve(func(ctx context.Context, plant Plant) (int64, error) {
		result, err := pool.Exec(ctx, insert, *plant.ID, *plant.Name, plant.Tag)
		return result.RowsAffected(), err
	})
}
